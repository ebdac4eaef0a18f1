"""What one client does in one round. This is the only epoch loop in the package."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dapperfl.core.cost import cost
from dapperfl.core.messages import ClientCost, ClientUpdate, LocalModel, Report, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import derive_seed, generator
from dapperfl.core.state import State, num_bytes, snapshot
from dapperfl.core.submodel import Submodel
from dapperfl.errors import RunError
from dapperfl.methods.base import Method
from dapperfl.settings import Range, check_settings, setting


class ClientData(Protocol):
    """A client's training data, as the loop wants it."""

    @property
    def num_samples(self) -> int:
        """How many examples there are."""

    def epoch(self, rng: torch.Generator) -> Iterator[Batch]:
        """Yield shuffled, augmented batches."""

    def clean(self) -> Iterator[Batch]:
        """Yield all examples in order, unaugmented."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a client trains; the defaults are the paper's."""

    epochs: int = setting(5, "local epochs in a round", Range(1))
    batch_size: int = setting(64, "examples in a step", Range(2))
    lr: float = setting(0.01, "learning rate of SGD", Range(above=0))
    momentum: float = setting(0.9, "momentum of SGD, zero at a round's start", Range(0, below=1))
    weight_decay: float = setting(1e-5, "weight decay, on every parameter", Range(0))

    def __post_init__(self) -> None:
        check_settings(self, "train.")


@dataclass(frozen=True)
class Trained:
    """What a client made of its work: the update it sends, and the memory it keeps."""

    update: ClientUpdate
    memory: State


@dataclass
class _Local:
    """The client's net while it trains; it becomes smaller when the method says so."""

    net: nn.Module
    submodel: Submodel
    optimiser: torch.optim.SGD


def train_client(
    method: Method,
    net: nn.Module,
    work: Work,
    data: ClientData,
    *,
    settings: TrainSettings,
    seed: int,
) -> Trained:
    """Train the assigned model for its epochs, with the method's objective and hooks.

    Args:
        method: The client half of the algorithm.
        net: The full net, as a template; it is not changed.
        work: What the server asked for, and what this client remembers.
        data: The client's own data.
        settings: The optimiser's settings.
        seed: The run's seed; batches and dropout depend on it, the round and the device alone.

    Raises:
        RunError: If the loss or the weights stop being finite.
    """
    path = (work.round_num, work.device.id)
    batches = generator(seed, "batches", *path)
    own = {name: t.detach().clone().requires_grad_() for name, t in method.own(work).items()}
    work = replace(work, memory={**work.memory, **own})
    local = _start(net, work.model, settings, own)
    flops, peak = 0, 0
    device = next(net.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, "dropout", *path))
        for epoch in range(1, work.epochs + 1):
            now = cost(local.submodel)
            frozen = method.extra_forwards(work)  # nets held beside the trained one
            flops += (now.train_flops + 2 * now.macs * frozen) * data.num_samples
            peak = max(peak, now.parameters * (1 + frozen))
            loss = _run_epoch(method, local, work, data.epoch(batches))
            if not math.isfinite(loss):
                raise RunError(f"the loss is {loss} in epoch {epoch}; try a smaller train.lr")
            model = LocalModel(snapshot(local.net), local.submodel)
            _follow(local, model, method.after_epoch(epoch, model, work), net)
    split = Net(local.net, local.submodel.graph.head)
    clean = _Counted(data.clean())
    report = method.report(split, clean, work)
    flops += 2 * cost(local.submodel).macs * clean.examples
    memory = {name: tensor.detach() for name, tensor in (own | report.memory).items()}
    return Trained(_update(local, work, data, report, (loss, flops, peak)), memory)


class _Counted:
    """Counts the examples that a report looks at, each of which costs a forward pass."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches
        self.examples = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.examples += len(batch.y)
            yield batch


def _start(net: nn.Module, model: LocalModel, settings: TrainSettings, own: State) -> _Local:
    """Build the assigned net and its optimiser; momentum starts at zero."""
    small = model.submodel.shrink(net)
    small.load_state_dict(model.weights)
    small.train()
    groups: list[dict[str, Any]] = [{"params": list(small.parameters())}]
    optimiser = torch.optim.SGD(
        [*groups, {"params": list(own.values())}],
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    return _Local(small, model.submodel, optimiser)


def _run_epoch(method: Method, local: _Local, work: Work, batches: Iterator[Batch]) -> float:
    """Take one step a batch; return the mean loss, read from the device once."""
    net = Net(local.net, local.submodel.graph.head)
    total: Tensor | None = None
    steps = 0
    for batch in batches:
        loss = method.loss(net, batch, work)
        local.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        local.optimiser.step()
        total = loss.detach() if total is None else total + loss.detach()
        steps += 1
    if total is None:
        raise RunError("the client has no training data")
    return float(total) / steps


def _follow(local: _Local, before: LocalModel, after: LocalModel, template: nn.Module) -> None:
    """Go on with the model a method returned; a new submodel shrinks net and momentum."""
    if after is before:
        return
    if after.submodel is not before.submodel:
        _shrink(local, before, after, template)
    local.net.load_state_dict(after.weights)


def _shrink(local: _Local, before: LocalModel, after: LocalModel, template: nn.Module) -> None:
    """Replace the net by a smaller one; the optimiser keeps the momentum of what stays."""
    old = dict(local.net.named_parameters())
    momentum = {
        name: state["momentum_buffer"]
        for name, parameter in old.items()
        if (state := local.optimiser.state.get(parameter)) and "momentum_buffer" in state
    }
    if before.submodel.kept:  # from small to smaller, by way of the full shape
        full = {name: template.get_parameter(name).new_zeros(template.get_parameter(name).shape)
                for name in momentum}  # fmt: skip
        momentum = before.submodel.scatter(momentum, full)
    momentum = after.submodel.slice(momentum)
    local.net = after.submodel.shrink(template)
    local.net.train()
    local.submodel = after.submodel
    for parameter in old.values():
        local.optimiser.state.pop(parameter, None)
    local.optimiser.param_groups[0]["params"] = list(local.net.parameters())
    for name, parameter in local.net.named_parameters():
        if name in momentum:
            local.optimiser.state[parameter]["momentum_buffer"] = momentum[name].clone()


def _update(
    local: _Local, work: Work, data: ClientData, report: Report, spent: tuple[float, int, int]
) -> ClientUpdate:
    """Put together what the client sends, and what the round cost it."""
    loss, flops, peak = spent
    weights = snapshot(local.net)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise RunError(f'"{name}" is not finite after training; try a smaller train.lr')
    price = cost(local.submodel)
    down = cost(work.model.submodel).upload_bytes
    spending = ClientCost(
        parameters_trained=price.parameters,
        parameters_uploaded=price.parameters,
        peak_parameters=max(peak, price.parameters),
        train_flops=flops,
        bytes_up=price.upload_bytes + num_bytes(report.shared),
        bytes_down=down + num_bytes(work.shared),
    )
    model = LocalModel(weights, local.submodel)
    metrics = {"loss": loss}
    return ClientUpdate(work.device, model, data.num_samples, spending, report.shared, metrics)
