"""One round, straight down: assign → train → update → statistics → evaluate.

`Simulator.rounds()` is a generator of records; the caller owns the loop and may log, plot, save
or break. Nothing calls back up.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import nan

import torch
from torch import Tensor, nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.core.messages import (
    Assignment,
    ClientCost,
    ClientUpdate,
    Device,
    LeftOut,
    LocalModel,
    Moments,
    ServerState,
    StatisticsTask,
)
from dapperfl.core.rng import Dice, generator
from dapperfl.core.state import snapshot
from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.errors import ConfigError, RunError
from dapperfl.methods.base import Method
from dapperfl.runtime.checkpoint import Snapshot
from dapperfl.runtime.evaluation import evaluate
from dapperfl.runtime.statistics import recalibrate
from dapperfl.runtime.training import TrainSettings
from dapperfl.sim.loop import LoopRunner, Runner

MAX_EMPTY_ROUNDS = 3
EVALUATION_BATCH = 512
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LevelCost:
    """What the compact net of one level costs, counted on the shrunk net."""

    rho: float
    parameters: int
    macs: int
    train_flops: int
    upload_bytes: int


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round."""

    round_num: int
    accuracy: Mapping[str, float]  # percent, per domain
    seconds: float
    costs: Mapping[int, ClientCost]  # by device id
    left_out: tuple[LeftOut, ...]
    loss: float  # of the last local epoch, weighted by samples; nan if nobody took part
    validation: Mapping[str, float]  # the same on what devices keep aside; empty if nothing is
    snapshot: Snapshot  # what a checkpoint stores

    @property
    def mean_accuracy(self) -> float:
        """The unweighted mean over domains: the paper's global accuracy of this round."""
        return sum(self.accuracy.values()) / len(self.accuracy)


class Simulator:
    """Federated training of one net on one machine.

    Args:
        method: The algorithm, e.g. `DapperFL()`.
        net: Any module whose layers have channel rules; its weights are the initial ones.
        federation: Devices, their data, and the test sets.
        train: The clients' optimiser settings.
        seed: Decides batches, dropout and who takes part.
        rounds: How many rounds to run.
        participation: The share of devices in each round.
        device: Where tensors live, e.g. "cpu" or "cuda".
        runner: How clients are run; one after another by default.
    """

    def __init__(
        self,
        *,
        method: Method,
        net: nn.Module,
        federation: Federation,
        train: TrainSettings | None = None,
        seed: int = 0,
        rounds: int = 10,
        participation: float = 1.0,
        device: str = "cpu",
        runner: Runner | None = None,
    ) -> None:
        if rounds < 1:
            raise ConfigError(f"rounds must be at least 1, not {rounds}")
        if not 0 < participation <= 1:
            raise ConfigError(f"participation must be above 0 and at most 1, not {participation}")
        self.method, self.federation = method, federation
        self.train = train or TrainSettings()
        self.seed, self.num_rounds, self.participation = seed, rounds, participation
        self.device = device
        plain = ChannelGraph.trace(net.to(device), self._example())
        self.net = method.prepare(net, plain.head).to(device)
        same = self.net is net
        self.graph = plain if same else ChannelGraph.trace(self.net, self._example())
        self.data = {d.id: self._batches(federation.train[d.id]) for d in federation.devices}
        self.test = {
            domain: self._batches(examples, batch_size=EVALUATION_BATCH)
            for domain, examples in federation.test.items()
        }
        self.validation = {
            domain: self._batches(examples, batch_size=EVALUATION_BATCH)
            for domain, examples in _kept_aside(federation).items()
        }
        self.runner = runner or LoopRunner(method, self.net, self.data, self.train, seed)

    def start(self) -> Snapshot:
        """Return the state before the first round."""
        model = LocalModel(snapshot(self.net), self.graph.full())
        return Snapshot(self.method.init(model, self.federation.devices), {})

    def rounds(self, resume: Snapshot | None = None) -> Iterator[RoundRecord]:
        """Run the rounds that are left, and yield a record after each.

        Raises:
            RunError: If nobody took part in three rounds in a row.
        """
        state = resume or self.start()
        self.levels()  # a budget that cannot be met is said now, not by every weak device later
        while state.server.round_num < self.num_rounds:
            record = self.round(state)
            state = record.snapshot
            yield record
            if state.empty_rounds >= MAX_EMPTY_ROUNDS:
                reasons = {f"device {out.device.id}: {out.reason}" for out in record.left_out}
                raise RunError(
                    f"nobody took part in {state.empty_rounds} rounds in a row, so the run ends "
                    f"after round {record.round_num} ({'; '.join(sorted(reasons)[:3])})"
                )

    def round(self, state: Snapshot) -> RoundRecord:
        """Run one round from a given state."""
        began = time.perf_counter()
        tally = _Tally()
        self.runner.memories = dict(state.memories)
        server, cohort = state.server, self.cohort(state.server.round_num + 1)
        updates = tally.watch(self.runner.train(self._assignments(server, cohort)))
        first = next(updates, None)
        if first is None:
            after = server.advance(server.weights)
            logger.warning("nobody took part in round %d: the model stays", after.round_num)
        else:
            after = self.method.update(server, chain([first], updates))
            if self.method.statistics == "recalibrate":
                after = recalibrate(after, tally.watch_moments(self._measure(after, tally.present)))
        # A round in which the method asked nobody is no failure, and no sign of health either.
        empty = 0 if first else state.empty_rounds + bool(tally.left_out)
        delivered = self.method.deliver(after)
        return RoundRecord(
            round_num=after.round_num,
            accuracy=self.evaluate(delivered),
            seconds=time.perf_counter() - began,
            costs=tally.costs,
            left_out=tuple(tally.left_out),
            loss=tally.loss(),
            validation=self._accuracy(delivered, self.validation),
            snapshot=Snapshot(after, dict(self.runner.memories), empty),
        )

    def cohort(self, round_num: int) -> list[Device]:
        """Return the devices of a round, in device order; it depends on seed and round alone."""
        devices = self.federation.devices
        count = max(1, round(self.participation * len(devices)))
        rng = generator(self.seed, "cohort", round_num)
        chosen = torch.randperm(len(devices), generator=rng)[:count].tolist()
        return [devices[index] for index in sorted(chosen)]

    def levels(self) -> list[LevelCost]:
        """Return the cost of each level's compact net, counted on the net itself."""
        start = self.start().server
        costs = []
        for rho in sorted({device.rho for device in self.federation.devices}):
            submodel = self.method.compact(start, rho)
            price = cost(submodel)
            held = sum(p.numel() for p in submodel.shrink(self.net).parameters())
            assert held == price.parameters
            costs.append(LevelCost(rho, held, price.macs, price.train_flops, price.upload_bytes))
        return costs

    def compact(self, server: ServerState, rho: float) -> LocalModel:
        """Cut a level's compact model from the global one.

        Where the method measures batch-norm statistics, those of the small net are measured by
        the level's own devices.
        """
        small = replace(server, model=self.method.take_home(server, rho))
        if self.method.statistics == "recalibrate" and small.model.submodel.kept:
            level = [device for device in self.federation.devices if device.rho == rho]
            moments = [m for m in self._measure(small, level) if isinstance(m, Moments)]
            small = recalibrate(small, moments)
        return small.model

    def evaluate(self, model: LocalModel) -> dict[str, float]:
        """Return a global or compact model's accuracy on every domain, in percent."""
        return self._accuracy(model, self.test)

    def _accuracy(self, model: LocalModel, data: Mapping[str, Batches]) -> dict[str, float]:
        return evaluate(self.net, model, {domain: b.clean() for domain, b in data.items()})

    def _measure(self, server: ServerState, devices: list[Device]) -> Iterator[Moments | LeftOut]:
        tasks = (StatisticsTask(server.round_num, device, server.model) for device in devices)
        return self.runner.statistics(tasks)

    def _assignments(self, server: ServerState, cohort: list[Device]) -> Iterator[Assignment]:
        for device in cohort:
            dice = Dice(self.seed, server.round_num + 1, device.id)
            assignment = self.method.assign(server, device, self.train.epochs, dice)
            if assignment is not None:
                yield assignment

    def _batches(self, examples: Examples, batch_size: int | None = None) -> Batches:
        world = self.federation
        return Batches(
            examples.to(self.device),
            batch_size=batch_size or self.train.batch_size,
            mean=world.mean,
            std=world.std,
            pad=world.pad,
            flip=world.flip,
        )

    def _example(self) -> Tensor:
        examples = next(iter(self.federation.train.values()))
        return next(self._batches(examples).clean()).x[:1]


def _kept_aside(federation: Federation) -> dict[str, Examples]:
    """Put the devices' validation data together by domain."""
    parts: dict[str, list[Examples]] = {}
    for device in federation.devices:
        examples = federation.validation.get(device.id)
        if examples is not None and len(examples):
            parts.setdefault(device.domain, []).append(examples)
    return {
        domain: Examples(
            torch.cat([part.images for part in found]), torch.cat([part.labels for part in found])
        )
        for domain, found in parts.items()
    }


class _Tally:
    """Counts what a round cost and who was left out, while replies stream by."""

    def __init__(self) -> None:
        self.costs: dict[int, ClientCost] = {}
        self.left_out: list[LeftOut] = []
        self.present: list[Device] = []
        self.losses: list[tuple[float, int]] = []

    def watch(self, replies: Iterator[ClientUpdate | LeftOut]) -> Iterator[ClientUpdate]:
        for reply in replies:
            if isinstance(reply, LeftOut):
                self._leave_out(reply)
            else:
                self.present.append(reply.device)
                self.costs[reply.device.id] = reply.cost
                self.losses.append((reply.metrics["loss"], reply.num_samples))
                yield reply

    def watch_moments(self, replies: Iterator[Moments | LeftOut]) -> Iterator[Moments]:
        for reply in replies:
            if isinstance(reply, LeftOut):
                self._leave_out(reply)
            else:
                self.costs[reply.device.id] += reply.cost
                yield reply

    def loss(self) -> float:
        total = sum(samples for _, samples in self.losses)
        return sum(loss * samples for loss, samples in self.losses) / total if total else nan

    def _leave_out(self, reply: LeftOut) -> None:
        logger.warning("device %d is left out: %s", reply.device.id, reply.reason)
        self.left_out.append(reply)
