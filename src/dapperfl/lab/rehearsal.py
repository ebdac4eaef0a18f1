"""What a round asks of a device of each level, and how long this machine needs for it.

Two rounds of a fleet of one device a level, on made-up pictures and with the runner of real
devices: whoever has to choose the level of a board runs this on the board.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from rich.table import Table

from dapperfl.core.cost import cost
from dapperfl.core.messages import ClientCost, Device, Work
from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.errors import RunError
from dapperfl.lab.build import build_on
from dapperfl.lab.config import Config
from dapperfl.lab.display import clock, human
from dapperfl.runtime.training import Trained
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import LevelCost, RoundRecord, Simulator

ROUNDS = 2  # in the first, nets and memories are new
BATCHES = 4  # of an epoch; more pictures take as many times longer, or a little less
_TINY_STEP = 1e-6  # learning rate: made-up pictures are nothing to learn from, or to diverge on


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

    def largest_within(self, seconds: float, pictures: int) -> float | None:
        """Return the rho of the largest net whose round takes no longer; None: none does."""
        quick = (
            part.level.rho
            for part in self.parts
            if part.seconds is not None and part.seconds * pictures <= seconds
        )
        return min(quick, default=None)


def rehearse(config: Config, world: Federation, pictures: int) -> Rehearsal:
    """Let a device of each level of a config train for two rounds on this machine.

    Args:
        config: The run; only its pictures and its learning rate are others.
        world: What pictures look like, and their classes.
        pictures: How many a device has; no more than it takes to tell the time are made up.

    Raises:
        RunError: If a device cannot train.
    """
    number = min(pictures, BATCHES * config.train.batch_size)
    simulator = _simulator(config, _fleet(config, world, number))
    for last in simulator.rounds():
        for absent in last.left_out:
            raise RunError(f"a device of rho = {absent.device.rho:g} cannot train: {absent.reason}")
    graph = simulator.graph
    parts = tuple(_parts(simulator, last, number))
    return Rehearsal(cost(graph.full()).parameters, graph.why_fixed(), parts)


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
        rounds=ROUNDS,
        train=replace(config.train, lr=_TINY_STEP),
        fleet=replace(config.fleet, participation=1.0),
        engine=replace(config.engine, name="loop", exact=False),  # all cores, as on a device
    )
    return build_on(quick, federation, runner=ClockedRunner)


def _parts(simulator: Simulator, last: RoundRecord, number: int) -> Iterator[Part]:
    """Put together what each level's device spent in the last round, and how long it took."""
    assert isinstance(simulator.runner, ClockedRunner)
    took = simulator.runner.seconds
    for level, device in zip(simulator.levels(), simulator.federation.devices, strict=True):
        spent = last.costs.get(device.id)
        yield Part(level, spent, took[device.id] / number if spent else None)


def table(rehearsal: Rehearsal, pictures: int) -> Table:
    """Draw the levels: their nets, and the round of a device."""
    title = f"a device of {pictures:,} pictures, in a round on this machine"
    drawn = Table(title=title, title_justify="left", title_style="bold")
    heads = ("rho", "parameters", "of dense", "held", "MACs", "sent", "received", "trains")
    for head in heads:
        drawn.add_column(head, justify="right", no_wrap=True)
    for part in rehearsal.parts:
        level, spent = part.level, part.spent
        drawn.add_row(
            f"{level.rho:g}",
            human(level.parameters),
            f"{100 * level.parameters / rehearsal.dense:.1f} %",
            human(spent.peak_parameters) if spent else "–",
            human(level.macs),
            f"{human(spent.bytes_up)}B" if spent else "–",
            f"{human(spent.bytes_down)}B" if spent else "–",
            _duration(part.seconds, pictures),
        )
    return drawn


def _duration(seconds: float | None, pictures: int) -> str:
    if seconds is None:
        return "never"
    whole = seconds * pictures
    return f"{whole:.1f} s" if whole < 100 else clock(whole)
