"""One round, straight down: assign → train → update → statistics → evaluate.

`Simulator.rounds()` is a generator of records; the caller owns the loop and may log, plot, save
or break. Nothing calls back up.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor, nn

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
from dapperfl.core.styles import remembering, with_styles, without_style
from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.errors import ConfigError, RunError
from dapperfl.methods.base import Method
from dapperfl.runtime.checkpoint import Snapshot
from dapperfl.runtime.frozen import FrozenNets
from dapperfl.runtime.local import Trade, prepared
from dapperfl.runtime.memory import LIMIT, MemoryStore
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.precision import Precision
from dapperfl.runtime.statistics import norm_layers, recalibrate
from dapperfl.runtime.threads import in_threads
from dapperfl.runtime.turning import can_turn
from dapperfl.sim.holdings import Holdings, kept_aside
from dapperfl.sim.judging import Judge
from dapperfl.sim.loop import LoopRunner, MakeRunner
from dapperfl.sim.next_state import checked_assignment, checked_state
from dapperfl.sim.tally import Tally

MAX_EMPTY_ROUNDS = 3
RECENT_COHORTS = 2  # whose data stays ready; all of it where half of the fleet takes part
EVALUATION_BATCH: Mapping[str, int] = {"cpu": 512, "cuda": 4096}  # by kind of device
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
    kept: Mapping[float, Mapping[str, str]] = field(default_factory=dict)  # masks by level
    # What real devices measured of the model that the round began with; percent, per domain.
    on_devices: Mapping[str, float] = field(default_factory=dict)
    rounding: float | None = None  # the largest share of an update that was lost on its way

    @property
    def mean_accuracy(self) -> float:
        """The unweighted mean over domains: the paper's global accuracy of this round."""
        return sum(self.accuracy.values()) / len(self.accuracy)


class Simulator:
    """Federated training of one net on one machine.

    Args:
        method: The algorithm, e.g. `DapperFL()`.
        net: Any module that returns logits; its weights are the initial ones.
        federation: Devices, their data, and the test sets.
        train: The clients' optimiser settings.
        seed: Decides batches, dropout and who takes part.
        rounds: How many rounds to run.
        participation: The share of devices in each round.
        device: Where tensors live, e.g. "cpu" or "cuda".
        runner: Makes what runs the clients; one after another by default.
        threads: How many torch computes a round with; None: as many as it has been told.
        precision: The number format of training and evaluation.
        memory_limit: Bytes of what clients remember that are held in RAM; the rest is on disk.
        min_replies: With fewer the model of a round stays as it was.
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
        runner: MakeRunner = LoopRunner,
        threads: int | None = None,
        precision: Precision = "fp32",
        memory_limit: int = LIMIT,
        min_replies: int = 1,
    ) -> None:
        if rounds < 1:
            raise ConfigError(f"rounds must be at least 1, not {rounds}")
        if not 0 < participation <= 1:
            raise ConfigError(f"participation must be above 0 and at most 1, not {participation}")
        self.method, self.federation = method, federation
        self.train = train or TrainSettings()
        self.seed, self.num_rounds, self.participation = seed, rounds, participation
        self.device, self.threads, self.min_replies = device, threads, min_replies
        example = torch.zeros(1, *federation.shape, device=device)
        classes = len(federation.classes)
        self.net, self.graph = prepared(method, net, example, classes, precision)
        self.has_statistics = any(norm_layers(self.net))
        self.cohort_size = max(1, round(participation * len(federation.devices)))
        self.data = Holdings(federation.train, self._batches, RECENT_COHORTS * self.cohort_size)
        self.memory = MemoryStore(memory_limit, device)
        large = EVALUATION_BATCH[torch.device(device).type]
        test, aside = (
            {name: self._batches(each, large) for name, each in sets.items()}
            for sets in (federation.test, kept_aside(federation))
        )
        turns = can_turn(self.net, example, precision)
        trade = Trade(method, self.net, self.train, precision, turns=turns)
        self.runner = runner(trade, self.data, seed)
        nets = FrozenNets(self.net, precision, turns=turns)
        self.judge = Judge(nets, self.runner.looking_through, test, aside)
        # Without test sets, the accuracies are those that devices measured last; 0 before that.
        self.measured = dict.fromkeys(sorted({each.domain for each in federation.devices}), 0.0)

    def start(self) -> Snapshot:
        """Return the state before the first round."""
        model = LocalModel(snapshot(self.net), self.graph.full())
        return Snapshot(self.method.init(model, self.federation.devices), self.memory.view({}))

    def rounds(self, resume: Snapshot | None = None) -> Iterator[RoundRecord]:
        """Run the rounds that are left, and yield a record after each.

        Raises:
            RunError: If nobody, or too few, took part in three rounds in a row, or in all of fewer.
        """
        state = resume or self.start()
        self.levels()  # a budget that cannot be met is said now, not by every weak device later
        if state.server.round_num >= self.num_rounds:
            self._check_alive(state, ())  # a run that failed at its end has failed for good
        while state.server.round_num < self.num_rounds:
            record = self.round(state)
            state = record.snapshot
            yield record
            self._check_alive(state, record.left_out)

    def _check_alive(self, state: Snapshot, left_out: Sequence[LeftOut]) -> None:
        """End a run that has had too many empty rounds in a row, or nothing else."""
        empty = state.empty_rounds
        if empty < min(MAX_EMPTY_ROUNDS, self.num_rounds):
            return
        reasons = sorted({f"device {out.device.id}: {out.reason}" for out in left_out})
        why = "; ".join(reasons[:3]) or "ask for more rounds to try again"
        count = f"{empty} rounds in a row" if empty > 1 else "1 round"
        raise RunError(
            f"{self._few} took part in {count}, so the run ends after round "
            f"{state.server.round_num} ({why})"
        )

    @in_threads
    def round(self, state: Snapshot) -> RoundRecord:
        """Run one round from a given state."""
        began = time.perf_counter()
        tally = Tally()
        self.runner.memories = memories = self.memory.view(state.memories)
        server, cohort = state.server, self.cohort(state.server.round_num + 1)
        after = self._next(server, self._assignments(server, cohort), tally)
        # A round in which the method asked nobody is no failure, and no sign of health either.
        enough = len(tally.present) >= self.min_replies
        empty = 0 if enough else state.empty_rounds + bool(tally.left_out)
        delivered = self.delivered(after)
        on_devices = tally.on_devices()
        self.measured |= on_devices
        return RoundRecord(
            round_num=after.round_num,
            accuracy=self.evaluate(delivered) if self.judge.test else dict(self.measured),
            seconds=time.perf_counter() - began,
            costs=dict(sorted(tally.costs.items())),
            left_out=tuple(sorted(tally.left_out, key=lambda out: out.device.id)),
            loss=tally.loss(),
            validation=self.judge.on(self.judge.aside, delivered),
            snapshot=Snapshot(after, memories, empty),
            kept=tally.kept(),
            on_devices=on_devices,
            rounding=tally.rounding,
        )

    def _next(
        self, server: ServerState, assignments: Iterator[Assignment], tally: Tally
    ) -> ServerState:
        """Let the cohort work, and fold what comes; with too few replies the model stays."""
        looks: dict[int, Tensor] = {}
        updates = tally.watch(self.runner.train(assignments))
        if self.method.restyle:
            updates = without_style(updates, looks)
        first = list(islice(updates, 1))
        after = self._updated(server, _rejoined(first, updates)) if first else server
        if len(tally.present) < self.min_replies:
            after = server.advance(server.weights)
            logger.warning("%s took part in round %d: the model stays", self._few, after.round_num)
            looks = {}
        after = remembering(after, looks)
        share = self.method.averaging
        after = after.averaged(server.mean, share) if share else after
        enough = len(tally.present) >= self.min_replies
        return self._measured(after, tally) if enough and self.measures(after) else after

    def measures(self, server: ServerState) -> bool:
        """Tell whether the batch-norm statistics of what is handed out now are measured."""
        return self.has_statistics and self.method.measures(server.round_num)

    def _measured(self, server: ServerState, tally: Tally) -> ServerState:
        """Let those who took part measure the statistics of what is handed out."""
        shown = server.smooth()
        asked = sorted(tally.present, key=lambda device: device.id)
        parts = {device: self.method.measured_in(shown, device) for device in asked}
        moments = tally.watch_moments(self._measure(server.round_num, parts))
        held = {device: model.submodel for device, model in parts.items()}
        power = self.method.weight_power
        return server.showing(recalibrate(shown, moments, held, power=power).weights)

    def _updated(self, server: ServerState, updates: Iterator[ClientUpdate]) -> ServerState:
        """Let the method fold what came."""
        return checked_state(self.method, server, self.method.update(server, updates))

    @property
    def _few(self) -> str:
        return "nobody" if self.min_replies == 1 else f"fewer than {self.min_replies} devices"

    def cohort(self, round_num: int) -> list[Device]:
        """Return the devices of a round, in device order; it depends on seed and round alone."""
        devices = self.federation.devices
        return self._some(devices, generator(self.seed, "cohort", round_num))

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

    def delivered(self, server: ServerState) -> LocalModel:
        """Return the model that is evaluated and handed out."""
        return self.method.deliver(server.smooth())

    @in_threads
    def compact(self, server: ServerState, rho: float) -> LocalModel:
        """Cut a level's compact model from the global one.

        Where statistics are measured, devices of the level measure those of the small net.
        """
        small = replace(server, model=self.method.take_home(server.smooth(), rho))
        if self.measures(server) and small.model.submodel.kept:
            level = [each for each in self.federation.devices if each.rho == rho]
            some = self._some(level, generator(self.seed, "compact"))
            replies = list(self._measure(small.round_num, dict.fromkeys(some, small.model)))
            moments = [each for each in replies if isinstance(each, Moments)]
            if not moments:
                _tell_unmeasured(rho, [each for each in replies if isinstance(each, LeftOut)])
            small = recalibrate(small, moments, power=self.method.weight_power)
        return small.model

    @in_threads
    def at_home(self, compact: Mapping[float, LocalModel]) -> dict[int, float]:
        """Return how good a device's compact model is on its own domain, once it is calibrated.

        Args:
            compact: The compact model of each level.

        Returns:
            Percent by device id; of as many devices as take part in a round at most, those that
            have pictures, and a test set of their domain.
        """
        return {
            device.id: self.judge.at_home(compact[device.rho], self.data[device.id], device.domain)
            for device in self._some(self.federation.devices, generator(self.seed, "home"))
            if device.id in self.data and device.domain in self.judge.test
        }

    @in_threads
    def evaluate(self, model: LocalModel) -> dict[str, float]:
        """Return a global or compact model's accuracy on every domain, in percent."""
        return self.judge.on(self.judge.test, model)

    def _some(self, devices: Sequence[Device], rng: torch.Generator) -> list[Device]:
        """Draw as many devices as take part in a round at most; in their order."""
        chosen = torch.randperm(len(devices), generator=rng)[: self.cohort_size].tolist()
        return [devices[index] for index in sorted(chosen)]

    def _measure(
        self, round_num: int, nets: Mapping[Device, LocalModel]
    ) -> Iterator[Moments | LeftOut]:
        """Let devices run their pictures through a net each."""
        tasks = (StatisticsTask(round_num, device, model) for device, model in nets.items())
        return self.runner.statistics(tasks)

    def _assignments(self, server: ServerState, cohort: list[Device]) -> Iterator[Assignment]:
        for device in cohort:
            dice = Dice(self.seed, server.round_num + 1, device.id)
            assignment = self.method.assign(server, device, self.train.epochs, dice)
            if assignment is not None:
                asked = checked_assignment(self.method, server, assignment)
                yield with_styles(asked, server, self.method.restyled_share(asked.round_num))

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


def _tell_unmeasured(rho: float, left_out: Sequence[LeftOut]) -> None:
    """Say of a compact model that its statistics are not its own."""
    why = "".join(f" (device {out.device.id}: {out.reason})" for out in left_out[:1])
    logger.warning(
        "nobody measured batch norm in the compact net of rho = %g%s: it has the statistics of "
        "the whole one, and may be worse for it",
        *(rho, why),
    )


def _rejoined(first: list[ClientUpdate], rest: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
    """Put the first update back before the others, and hold none that has been folded."""
    while first:
        yield first.pop()
    yield from rest
