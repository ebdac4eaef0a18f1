"""What a round asks of a device of each level, and how long this machine needs for it.

A few rounds of a fleet of one device a level, on made-up pictures and with the runner of real
devices: whoever has to choose the level of a board runs this on the board.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice

import torch

from dapperfl.core.cost import cost
from dapperfl.core.messages import ClientCost, Device, ServerState, Work
from dapperfl.core.rng import Dice, generator
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.errors import RunError
from dapperfl.lab.build import build_on
from dapperfl.lab.config import Config
from dapperfl.runtime.training import Trained
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import LevelCost, Simulator

ROUNDS = 2  # in the first, nets and memories are new
MORE_ROUNDS = 8  # where nets are drawn anew each round, and one draw says little
BATCHES, PICTURES = 4, 128  # at least, of an epoch; what is fixed in a round is spread over them
_TINY_STEP = 1e-6  # learning rate: made-up pictures are nothing to learn from, or to diverge on
_ASKED = 20  # rounds for which a method says which nets it would hand out

_Round = dict[int, tuple[ClientCost, float]]  # by device, what it spent and how long it took


@dataclass
class ClockedRunner(LoopRunner):
    """Trains as real devices do, and remembers how long each needed in the last round."""

    seconds: dict[int, float] = field(default_factory=dict)

    def _train(self, work: Work) -> Trained:
        began = time.perf_counter()
        trained = super()._train(work)
        self.seconds[work.device.id] = time.perf_counter() - began
        return trained


@dataclass(frozen=True)
class Part:
    """What a level is, and what its devices do in a round; nothing if they take no part."""

    level: LevelCost
    spent: ClientCost | None
    seconds: float | None  # on this machine, for one picture in all epochs


@dataclass(frozen=True)
class Rehearsal:
    """What came of it."""

    dense: int  # parameters of the whole net
    uncut: str  # what stays full in every level and why; empty if nothing does
    parts: tuple[Part, ...]  # the strongest level first
    rounds: int = ROUNDS  # that were rehearsed
    redraws: bool = False  # whether a device gets another net from round to round, or none

    @property
    def shrinks(self) -> bool:
        """Whether levels differ in their nets; of a single level nobody knows."""
        return len(self.parts) < 2 or len({part.level.parameters for part in self.parts}) > 1

    def largest_within(self, seconds: float, pictures: int) -> float | None:
        """Return the rho of the largest net whose round takes no longer; None: none does."""
        quick = (
            part.level.rho
            for part in self.parts
            if part.seconds is not None and part.seconds * pictures <= seconds
        )
        return min(quick, default=None)


def rehearse(config: Config, world: Federation, pictures: int) -> Rehearsal:
    """Let a device of each level of a config train for a few rounds on this machine.

    Args:
        config: The run; only its pictures and its learning rate are others.
        world: What pictures look like, and their classes.
        pictures: How many a device has; no more than it takes to tell the time are made up.

    Raises:
        RunError: If a device cannot train.
    """
    number = min(pictures, max(BATCHES * config.train.batch_size, PICTURES))
    simulator = _simulator(config, _fleet(config, world, number))
    rounds = _trained(simulator)
    done = list(islice(rounds, ROUNDS))
    if redraws := _hands_out_others(simulator) or _differ(done):
        done += rounds
    counted = done if redraws else done[-1:]
    return Rehearsal(
        dense=cost(simulator.graph.full()).parameters,
        uncut=simulator.graph.why_fixed(),
        parts=tuple(_parts(simulator, counted, number)),
        rounds=len(done),
        redraws=redraws,
    )


def _fleet(config: Config, world: Federation, number: int) -> Federation:
    """Give a device of each level the same pictures of noise."""
    devices = tuple(
        Device(index, "made up", rho, number)
        for index, rho in enumerate(sorted(set(config.fleet.rhos)))
    )
    noise = torch.randint(256, (number, *world.shape), generator=generator(config.seed, "noise"))
    labels = torch.arange(number) % len(world.classes)
    examples = Examples(noise.to(torch.uint8), labels)
    held = {device.id: examples for device in devices}
    return replace(world, devices=devices, train=held, test={}, validation={}, reserve={})


def _simulator(config: Config, federation: Federation) -> Simulator:
    quick = replace(
        config,
        rounds=MORE_ROUNDS,
        train=replace(config.train, lr=_TINY_STEP),
        fleet=replace(config.fleet, participation=1.0),
        engine=replace(config.engine, name="loop", exact=False),  # all cores, as on a device
    )
    return build_on(quick, federation, runner=ClockedRunner)


def _trained(simulator: Simulator) -> Iterator[_Round]:
    """Run one round after another, and yield what each device spent and how long it took."""
    assert isinstance(simulator.runner, ClockedRunner)
    for record in simulator.rounds():
        for absent in record.left_out:
            raise RunError(f"a device of rho = {absent.device.rho:g} cannot train: {absent.reason}")
        took = simulator.runner.seconds
        yield {device: (spent, took[device]) for device, spent in record.costs.items()}


def _hands_out_others(simulator: Simulator) -> bool:
    """Tell whether the method hands a device nets of other sizes from round to round, or none.

    It is asked for more rounds than are trained: a draw may be the same again and again.
    """
    start = simulator.start().server
    first: list[object] = []
    for number in range(_ASKED):
        server = replace(start, round_num=number)  # one at a time: each holds what was cut from it
        sizes = [_handed(simulator, server, device) for device in simulator.federation.devices]
        first = first or sizes
        if sizes != first:
            return True
    return False


def _handed(simulator: Simulator, server: ServerState, device: Device) -> object:
    """Return the sizes of the net that a device gets in the next round; None: it gets none."""
    dice = Dice(simulator.seed, server.round_num + 1, device.id)
    work = simulator.method.assign(server, device, simulator.train.epochs, dice)
    return work and work.model.submodel.signature


def _differ(rounds: Sequence[_Round]) -> bool:
    """Tell whether a device took part in one round only, or cut its net otherwise in another."""
    first, *others = (
        {device: spent.parameters_trained for device, (spent, _) in each.items()} for each in rounds
    )
    return any(other != first for other in others)


def _parts(simulator: Simulator, rounds: Sequence[_Round], number: int) -> Iterator[Part]:
    """Put together the most that each level's device spent in a round, and the longest it took."""
    for level, device in zip(simulator.levels(), simulator.federation.devices, strict=True):
        found = [each[device.id] for each in rounds if device.id in each]
        if found:
            bills = (astuple(spent) for spent, _ in found)
            most = ClientCost(*(max(column) for column in zip(*bills, strict=True)))
            yield Part(level, most, _longest(found) / number)
        else:
            yield Part(level, None, None)


def _longest(found: Sequence[tuple[ClientCost, float]]) -> float:
    """Return the longest time; the first counts only if no later net was as large.

    Nets and memories were new then, and with the first device the whole process was.
    """
    (first, seconds), *later = found
    if all(spent.peak_parameters < first.peak_parameters for spent, _ in later):
        return max(seconds, *(took for _, took in later), 0.0)
    return max(took for _, took in later)
