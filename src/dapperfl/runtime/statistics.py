"""Batch-norm statistics of the global net, measured anew: the statistics phase of a round.

A pruned client's running statistics describe its small net; averaged into the full one they are
wrong. In this phase the cohort runs the new global net once over its own training data, and the
moments are pooled by sample counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dapperfl.core.cost import cost
from dapperfl.core.messages import (
    ClientCost,
    LocalModel,
    Moments,
    ServerState,
    StatisticsTask,
)
from dapperfl.core.state import State, num_bytes
from dapperfl.errors import RunError
from dapperfl.runtime.training import ClientData


def norm_layers(net: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Yield the layers that keep running statistics."""
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            yield name, module


def measure_moments(net: nn.Module, task: StatisticsTask, data: ClientData) -> Moments:
    """Run a client's data once through a model and return the moments of its norm layers.

    Norm layers normalise by the batch, as in training; everything else is in evaluation mode, so
    no random number is drawn.
    """
    model = task.model.submodel.shrink(net)
    model.load_state_dict(task.model.weights)
    model.eval()
    layers = dict(norm_layers(model))
    for layer in layers.values():
        layer.train()
        layer.momentum = 1.0  # the running statistics become those of the last batch
    means: State = {}
    second: State = {}
    with torch.no_grad():
        for batch in data.clean():
            model(batch.x)
            share = len(batch.y) / data.num_samples
            for name, layer in layers.items():
                mean, variance = _last_statistics(layer)
                _accumulate(means, f"{name}.running_mean", mean * share)
                _accumulate(second, f"{name}.running_var", (variance + mean.square()) * share)
    for name, tensor in second.items():
        if not bool(tensor.isfinite().all()):
            raise RunError(f'the measured "{name}" is not finite')
    price = cost(task.model.submodel)
    spent = ClientCost(
        peak_parameters=price.parameters,
        train_flops=2 * price.macs * data.num_samples,
        bytes_up=num_bytes(means) // 2 + num_bytes(second) // 2,  # they travel as float32
        bytes_down=price.upload_bytes,
    )
    return Moments(task.device, data.num_samples, spent, means, second)


def _last_statistics(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean.to(torch.float64), layer.running_var.to(torch.float64)


def _accumulate(state: State, name: str, tensor: Tensor) -> None:
    state[name] = state[name] + tensor if name in state else tensor


def recalibrate(server: ServerState, moments: Iterable[Moments]) -> ServerState:
    """Return the server state whose statistics are the clients' moments, pooled by n_i."""
    total = 0
    means: State = {}
    second: State = {}
    for moment in moments:
        total += moment.num_samples
        for name, tensor in moment.means.items():
            _accumulate(means, name, tensor * moment.num_samples)
        for name, tensor in moment.second.items():
            _accumulate(second, name, tensor * moment.num_samples)
    if not total:
        return server
    weights = dict(server.weights)
    for name, tensor in means.items():
        variance = name.removesuffix("running_mean") + "running_var"
        mean = tensor / total
        spread = (second[variance] / total - mean.square()).clamp_min(0)
        weights[name] = mean.to(weights[name].dtype)
        weights[variance] = spread.to(weights[variance].dtype)
    return replace(server, model=LocalModel(weights, server.model.submodel))
