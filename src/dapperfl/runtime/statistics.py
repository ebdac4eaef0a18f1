"""Batch-norm statistics of the global net, measured anew: the statistics phase of a round.

A pruned client's running statistics describe its small net; averaged into the full one they are
wrong. In this phase the cohort runs the new global net, or as much of it as a device may hold, once
over its own training data, and the moments are pooled; a device weighs what it does in the mean.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dapperfl.core.cost import cost
from dapperfl.core.messages import (
    ClientCost,
    Device,
    LocalModel,
    Moments,
    ServerState,
    StatisticsTask,
)
from dapperfl.core.state import State, num_bytes, whole_block
from dapperfl.core.submodel import Submodel, kept_block
from dapperfl.errors import RunError
from dapperfl.runtime.precision import Precision, autocast
from dapperfl.runtime.training import LARGE_BATCH, ClientData


def norm_layers(net: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Yield the layers that keep running statistics, each once."""
    seen = set()
    for name, module in norm_names(net).items():
        if module not in seen:
            seen.add(module)
            yield name, module


def norm_names(net: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers that keep running statistics; one that is shared has several names."""
    return {
        name: module
        for name, module in net.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def normalising_by_batch(net: nn.Module) -> None:
    """Make norm layers work as in training, and everything else as in evaluation, for good.

    So no random number is drawn, and the running statistics are always those of the last batch.
    Layers that the net's own `train()` leaves in evaluation mode keep the statistics they have.
    """
    net.train()
    learning = [layer for _, layer in norm_layers(net) if layer.training]
    net.eval()
    for layer in learning:
        layer.training = True
        layer.momentum = 1.0


def batch_moments(net: nn.Module, x: Tensor, precision: Precision = "fp32") -> Tensor:
    """Run a batch through a net and return what its norm layers saw: (2, channels of all).

    The first row has means, the second row second moments.
    """
    with torch.no_grad(), autocast(precision, x.device), _overwritten(net) as earlier:
        net(x)
    known = [(layer.running_mean, layer.running_var) for _, layer in norm_layers(net)]
    if not known:
        return x.new_zeros(2, 0, dtype=torch.float64)
    mean = torch.cat([mean for mean, _ in known if mean is not None]).double()
    variance = torch.cat([variance for _, variance in known if variance is not None]).double()
    found = torch.stack([mean, variance + mean.square()])
    if not any(earlier.values()):
        return found
    parts = torch.split(found, [layer.num_features for _, layer in norm_layers(net)], dim=1)
    every = zip(norm_layers(net), parts, strict=True)
    return torch.cat(
        [torch.stack([*earlier.get(layer, ()), last]).mean(0) for (_, layer), last in every], 1
    )


@contextmanager
def _overwritten(net: nn.Module) -> Iterator[dict[_BatchNorm, list[Tensor]]]:
    """Collect the moments of all calls but the last of layers that a pass calls several times.

    A head that is shared by several scales has one norm for all, and each counts alike, as in
    training. Layers that are called once cost nothing.
    """
    calls: dict[_BatchNorm, list[Tensor]] = {}

    def before(layer: nn.Module, _: object) -> None:
        assert isinstance(layer, _BatchNorm)
        if layer in calls:
            mean, variance = layer.running_mean, layer.running_var
            assert mean is not None
            assert variance is not None
            seen = mean.double()
            calls[layer].append(torch.stack([seen, variance.double() + seen.square()]))
        else:
            calls[layer] = []

    learning = [layer for _, layer in norm_layers(net) if layer.training]
    hooks = [layer.register_forward_pre_hook(before) for layer in learning]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def measure_moments(
    net: nn.Module, task: StatisticsTask, data: ClientData, look: Callable[[Tensor], Tensor]
) -> Moments:
    """Run a client's data once through a net and return the moments of its norm layers.

    Args:
        net: A net that holds the task's model and normalises by the batch.
        task: What was asked for, and of whom.
        data: The client's own data.
        look: What `batch_moments` makes of a batch and this net.
    """
    total: Tensor | None = None
    for batch in data.clean(LARGE_BATCH):
        found = look(batch.x) * (len(batch.y) / data.num_samples)
        total = found if total is None else total + found
    means, second = _by_name(net, total)
    price = cost(task.model.submodel)
    spent = ClientCost(
        peak_parameters=price.parameters,
        train_flops=2 * price.macs * data.num_samples,
        bytes_up=num_bytes(means) // 2 + num_bytes(second) // 2,  # they travel as float32
        bytes_down=price.upload_bytes,
    )
    return Moments(task.device, data.num_samples, spent, means, second)


def finite(moments: Moments) -> Moments:
    """Return moments that can be averaged; this is where one waits for them.

    Raises:
        RunError: If they are not finite.
    """
    for name, tensor in moments.second.items():
        block = whole_block(tensor)
        if math.isfinite(float(block.sum())):
            break  # the block of one is the block of all
        if not tensor.isfinite().all():
            raise RunError(f'the measured "{name}" is not finite')
    return moments


def _by_name(net: nn.Module, total: Tensor | None) -> tuple[State, State]:
    """Cut moments of all layers into those of each, under all names of its statistics."""
    if total is None:
        return {}, {}
    layers = [layer for _, layer in norm_layers(net)]
    parts = torch.split(total, [layer.num_features for layer in layers], dim=1)
    of = dict(zip(layers, parts, strict=True))
    names = norm_names(net)
    means = {f"{name}.running_mean": of[layer][0] for name, layer in names.items()}
    second = {f"{name}.running_var": of[layer][1] for name, layer in names.items()}
    return means, second


def recalibrate(
    server: ServerState,
    moments: Iterable[Moments],
    held: Mapping[Device, Submodel] | None = None,
    *,
    power: float = 1.0,
) -> ServerState:
    """Return the server state whose statistics are the clients' moments, pooled.

    Args:
        server: The state with the net that was measured.
        moments: What the clients found.
        held: In which part of that net a client measured; None: all in the whole. A channel has
            the statistics of those who hold it; one that nobody holds stays as it is.
        power: A client weighs its number of samples to this power, as it does in the mean.
    """
    names: list[str] = []
    pooled: Tensor | None = None  # (3, channels of all layers): means, second moments, weights
    # Of real devices, who answers first must not decide about the last bit.
    for moment in sorted(moments, key=lambda each: each.device.id):
        if not moment.means:
            continue
        names = list(moment.means)
        rows = [torch.cat(list(each.values())) for each in (moment.means, moment.second)]
        found = torch.stack([*rows, torch.ones_like(rows[0])]) * moment.num_samples**power
        if held is not None:
            found = _spread(found, server.weights, names, held[moment.device])
        pooled = found if pooled is None else pooled + found
    if pooled is None:
        return server
    reached = pooled[2]
    mean, second = pooled[:2] / reached.clamp_min(1)  # nobody's channel has none, others have more
    spread = (second - mean.square()).clamp_min(0)
    weights = dict(server.weights)
    sizes = [len(weights[name]) for name in names]
    parts = (torch.split(row, sizes) for row in (mean, spread, reached > 0))
    for name, centre, width, known in zip(names, *parts, strict=True):
        variance = name.removesuffix("running_mean") + "running_var"
        for key, value in ((name, centre), (variance, width)):
            weights[key] = torch.where(known, value.to(weights[key].dtype), weights[key])
    return replace(server, model=LocalModel(weights, server.model.submodel))


def _spread(found: Tensor, full: State, names: list[str], held: Submodel) -> Tensor:
    """Put the columns of the channels that a part of the net holds where they are in the whole."""
    ends = torch.tensor([len(full[name]) for name in names]).cumsum(0).tolist()
    everywhere = torch.arange(ends[-1])
    columns = [
        everywhere[end - len(full[name]) : end][kept_block(held.indices.get(name, ()), everywhere)]
        for name, end in zip(names, ends, strict=True)
    ]
    wide = found.new_zeros(len(found), ends[-1])
    return wide.index_copy_(1, torch.cat(columns).to(found.device), found)
