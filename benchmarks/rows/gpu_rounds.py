"""A round of the paper on a GPU, beside the release's way of working on the same GPU.

Ten clients, five epochs, protocol `paper`, evaluation on all four test sets; real images.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from benchmarks.baselines.release_way import ReleaseWay
from benchmarks.measure import (
    ROOT,
    Options,
    Row,
    at_least,
    at_most,
    faster,
    medians,
    say,
    seconds_of,
)
from dapperfl.errors import DapperFLError
from dapperfl.lab.build import build
from dapperfl.lab.resolve import resolve
from dapperfl.nets.resnet import ResNet
from dapperfl.sim.simulator import Simulator


@dataclass(frozen=True)
class Contest:
    """What is run, and what it must reach."""

    name: str
    config: Path | None
    times: float  # faster than the release's way
    seconds: float  # at most
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """How this package runs it."""

    name: str = "graphs"
    precision: str = "bf16"
    device: str = "cuda"

    def settings(self) -> list[str]:
        """Return the settings that ask for it."""
        return [
            f"engine={self.name}",
            f"engine.precision={self.precision}",
            f"engine.device={self.device}",
        ]

    def finish(self) -> None:
        """Wait until the device has done what it was told."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


CONTESTS = (
    Contest("Digits round", ROOT / "experiments" / "digits.toml", 20, 0.35),
    Contest("Office round", ROOT / "experiments" / "office_caltech.toml", 12, 0.20),
)
PRESETS = ("default", "paper")


def simulator(contest: Contest, preset: str, engine: Engine, rounds: int) -> Simulator:
    """Build the contest's run with a preset of DapperFL."""
    given = [*contest.settings, f"method.preset={preset}", f"rounds={rounds}"]
    return build(resolve(contest.config, [*given, *engine.settings()]))


def rounds_of(run: Simulator, engine: Engine) -> Callable[[], object]:
    """Return a function that runs one more round to its very end."""
    records = run.rounds()

    def one_round() -> None:
        next(records)
        engine.finish()

    return one_round


def release_round(run: Simulator, workers: tuple[int, ...]) -> Callable[[], object]:
    """Return the release's round of the same federation, with the workers it is fastest with."""
    net = cast(ResNet, run.net)
    trials = [ReleaseWay(net, run.federation, run.train, run.device, count) for count in workers]
    if len(trials) == 1:
        return trials[0].round
    seconds = {}
    for trial in trials:
        trial.round()
        seconds[trial.workers] = seconds_of(trial.round)
        say(
            f"  the release's way, {trial.workers} loader processes: {seconds[trial.workers]:.2f} s"
        )
    return min(trials, key=lambda trial: seconds[trial.workers]).round


def contest_rows(
    contest: Contest, engine: Engine, repeats: int, workers: tuple[int, ...]
) -> Iterator[Row]:
    """Let the presets and the release's way take turns."""
    runs = [simulator(contest, preset, engine, repeats + 3) for preset in PRESETS]
    ours = [rounds_of(run, engine) for run in runs]
    first = [seconds_of(job) for job in ours]
    *timed, slow = medians([*ours, release_round(runs[0], workers)], repeats)
    for preset, seconds, start in zip(PRESETS, timed, first, strict=True):
        what = f"{contest.name}, DapperFL {preset}, {engine.name} {engine.precision}"
        yield faster(f"{what}, against the release's way", seconds, slow, at_least(contest.times))
        yield faster(f"{what}, seconds", seconds, slow, at_most(contest.seconds, "value"))
        yield faster(f"{what}: the first round", start, slow)


def measure(options: Options) -> Iterator[Row | str]:
    """Measure both benchmarks of the paper where there is a GPU, and data."""
    if not torch.cuda.is_available():
        yield "there is no CUDA device here, so the rounds of the paper are not measured"
        return
    repeats = 2 if options.quick else 5
    root = (f"data.root={options.data}",) if options.data else ()
    for contest in CONTESTS:
        asked = Contest(contest.name, contest.config, contest.times, contest.seconds, root)
        try:
            yield from contest_rows(asked, Engine(), repeats, workers=(0, 4))
        except DapperFLError as error:
            yield f"{contest.name} is not measured: {error} (docs/data.md; --data DIR)"
