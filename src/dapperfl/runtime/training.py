"""What one client does in one round. This is the only epoch loop in the package."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Literal, Protocol

import torch
from torch import Tensor

from dapperfl.core.cost import Cost, cost
from dapperfl.core.messages import ClientCost, ClientUpdate, LocalModel, Report, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import derive_seed, foreign_seeded, generator
from dapperfl.core.state import State, blocks_of, num_bytes
from dapperfl.core.styles import style_of
from dapperfl.errors import RunError
from dapperfl.methods.base import Method
from dapperfl.runtime.hooks import Given, model_of, report_of
from dapperfl.runtime.local import LocalNet, PlainNet, Trade

LARGE_BATCH = 512  # where nothing is trained: no activations are kept, so more examples fit
Part = Literal["train", "act", "report"]  # of a client's round, as it pauses before them
Steps = Generator[Part, None, "Trained"]


class ClientData(Protocol):
    """A client's training data, as the loop wants it."""

    @property
    def num_samples(self) -> int:
        """How many examples there are."""

    def epoch(self, rng: torch.Generator) -> Iterator[Batch]:
        """Yield shuffled, augmented batches."""

    def clean(self, batch_size: int) -> Iterator[Batch]:
        """Yield all examples in order, unaugmented."""


@dataclass(frozen=True)
class Trained:
    """What a client made of its work: the update it sends, and the memory it keeps."""

    update: ClientUpdate
    memory: State


def train_client(trade: Trade, work: Work, data: ClientData, *, seed: int) -> Trained:
    """Train the assigned model for its epochs, with the method's objective and hooks.

    Args:
        trade: Method, net and optimiser; nothing of it is changed.
        work: What the server asked for, and what this client remembers.
        data: The client's own data.
        seed: The run's seed; batches and dropout depend on it, the round and the device alone.

    Raises:
        RunError: If the loss or the weights stop being finite.
    """
    device = next(trade.template.parameters()).device
    luck = dropout_seed(seed, work)
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), foreign_seeded(luck):
        torch.manual_seed(luck)
        steps = client_round(trade.method, work, data, seed=seed, start=partial(PlainNet, trade))
        return exhausted(steps)


def dropout_seed(seed: int, work: Work) -> int:
    """Return what torch's own generators, and others, start from when a client trains."""
    return derive_seed(seed, "dropout", work.round_num, work.device.id)


def exhausted(steps: Steps) -> Trained:
    """Run a client's round to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Trained = end.value
            return result


def client_round(
    method: Method,
    work: Work,
    data: ClientData,
    *,
    seed: int,
    start: Callable[[Work, State], LocalNet],
) -> Steps:
    """Run a client's round, and pause wherever the next line has to wait for its numbers.

    Each pause says which part comes next. A runner that trains several clients side by side lets
    another one go on meanwhile, and may run short parts before long ones. What the client trains
    with is what `start` makes of its work and of the tensors it trains beside the net.
    """
    batches = generator(seed, "batches", work.round_num, work.device.id)
    given = Given.to(work)
    local = start(work, method.own(work))
    work = local.work
    bill = _Bill(method.extra_forwards(work))
    losses: list[tuple[int, Tensor]] = []
    for epoch in range(1, work.epochs + 1):
        acts = method.acts_after(epoch)
        for part in _parts(data.epoch(batches), method.batches_before_acting(epoch)):
            seen = _Counted(part)
            losses.append((epoch, local.run_epoch(seen)))
            given.check(method, "loss")
            bill.count(cost(local.submodel), seen.examples)
            if acts:
                yield "act"
                _act(method, epoch, local, work)
                given.check(method, "after_epoch")
                yield "train"
            acts = False
    yield "report"
    clean = _Counted(data.clean(LARGE_BATCH))
    report = reported(method, local.net, work, clean, data.clean(LARGE_BATCH))
    given.check(method, "report")
    bill.flops += 2 * cost(local.submodel).macs * clean.examples
    kept = {name: tensor.detach().clone() for name, tensor in local.own.items()}
    final = local.model()
    found = torch.stack([loss for _, loss in losses]).tolist()
    _check_finite([epoch for epoch, _ in losses], found, final.weights)
    metrics = {"loss": found[-1]}
    spent = bill.total(work, final, report)
    update = ClientUpdate(work.device, final, data.num_samples, spent, report.shared, metrics)
    return Trained(update, kept | {name: t.detach() for name, t in report.memory.items()})


def reported(
    method: Method, net: Net, work: Work, clean: Iterable[Batch], again: Iterable[Batch]
) -> Report:
    """Return what a method reports of a client's pictures, and their style where it is wanted."""
    report = report_of(method, net, clean, work)
    if not method.restyle:
        return report
    return replace(report, shared={**report.shared, **style_of(again)})


def _act(method: Method, epoch: int, local: LocalNet, work: Work) -> None:
    """Let the method look at the weights, and go on with what it makes of them."""
    model = local.model()
    after = model_of(method, epoch, model, work)
    if after is not model:
        local.follow(model, after)


def _parts(batches: Iterator[Batch], first: int | None) -> Iterator[Iterator[Batch]]:
    """Cut an epoch in two after its first batches; a short one has one part only."""
    if first is None:
        yield batches
        return
    yield islice(batches, first)
    for batch in batches:  # there is a second part, if there is a batch left
        yield chain([batch], batches)


class _Counted:
    """Counts the examples that somebody looks at, each of which costs a pass."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches
        self.examples = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.examples += len(batch.y)
            yield batch


@dataclass
class _Bill:
    """What a client's round costs, counted while it goes."""

    frozen: int  # nets held beside the trained one, each of which sees every batch
    flops: int = 0
    peak: int = 0

    def count(self, now: Cost, examples: int) -> None:
        self.flops += (now.train_flops + 2 * now.macs * self.frozen) * examples
        self.peak = max(self.peak, now.parameters * (1 + self.frozen))

    def total(self, work: Work, final: LocalModel, report: Report) -> ClientCost:
        price = cost(final.submodel)
        down = cost(work.model.submodel).upload_bytes
        return ClientCost(
            parameters_trained=price.parameters,
            parameters_uploaded=price.parameters,
            peak_parameters=max(self.peak, price.parameters),
            train_flops=self.flops,
            bytes_up=price.upload_bytes + num_bytes(report.shared),
            bytes_down=down + num_bytes(work.shared),
        )


def _check_finite(epochs: list[int], losses: list[float], weights: State) -> None:
    """Refuse what no server should average; the device is asked once, not once a tensor."""
    for epoch, loss in zip(epochs, losses, strict=True):
        if not math.isfinite(loss):
            raise RunError(f"the loss is {loss} in epoch {epoch}; try a smaller train.lr")
    floats = {name: tensor for name, tensor in weights.items() if tensor.dtype.is_floating_point}
    if not floats:
        return
    sums = torch.stack([block.sum(dtype=torch.float64) for block in blocks_of(floats.values())])
    if math.isfinite(float(sums.sum())):
        return
    broken = next(name for name, tensor in floats.items() if not tensor.isfinite().all())
    raise RunError(f'"{broken}" is not finite after training; try a smaller train.lr')
