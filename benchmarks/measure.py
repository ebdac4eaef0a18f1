"""What a measurement is: a ratio of two things seen in one run, and what it must reach.

Timings on shared machines mean little by themselves, so both sides of a ratio take turns.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Options:
    """What the person at the terminal asked for."""

    quick: bool = False  # tiny sizes and few repeats: shows that it works, not how well
    data: Path | None = None  # folder of the real images


@dataclass(frozen=True)
class Goal:
    """The bound a row must keep, on its ratio or on its value."""

    bound: float
    at_least: bool
    of: Literal["ratio", "value"] = "ratio"

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:.3g}"


@dataclass(frozen=True)
class Row:
    """One thing measured beside its baseline; without a goal it is for information."""

    name: str
    value: float
    unit: str
    baseline: float  # in the same unit
    ratio: float
    goal: Goal | None = None

    @property
    def judged(self) -> float:
        """The number that the goal is about."""
        return self.value if self.goal and self.goal.of == "value" else self.ratio

    @property
    def margin(self) -> float | None:
        """How many times better than its goal the row is; below 1 it misses."""
        if self.goal is None:
            return None
        share = self.judged / self.goal.bound
        return share if self.goal.at_least else 1 / share

    @property
    def met(self) -> bool | None:
        """Whether the goal is kept."""
        return None if self.margin is None else self.margin >= 1

    def to_table(self) -> dict[str, Any]:
        """Return the row as it is written down."""
        target = None if self.goal is None else self.goal.bound
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "ratio": self.ratio,
            "target": target,
            "met": self.met,
        }


def at_least(bound: float) -> Goal:
    """Ask for a ratio of at least this."""
    return Goal(bound, at_least=True)


def at_most(bound: float, of: Literal["ratio", "value"] = "ratio") -> Goal:
    """Ask for a ratio (or a value) of at most this."""
    return Goal(bound, at_least=False, of=of)


def faster(name: str, seconds: float, baseline: float, goal: Goal | None = None) -> Row:
    """Say how many times faster something is than its baseline."""
    unit, scale = ("s", 1.0) if seconds >= 0.5 else ("ms", 1e3)
    if goal and goal.of == "value":  # such a goal is in seconds
        unit, scale = "s", 1.0
    return Row(name, scale * seconds, unit, scale * baseline, baseline / seconds, goal)


def as_much(name: str, value: float, unit: str, baseline: float, goal: Goal | None = None) -> Row:
    """Say how much of its baseline something takes."""
    return Row(name, value, unit, baseline, value / baseline, goal)


def medians(
    work: Sequence[Callable[[], object]], repeats: int, *, warm: bool = True
) -> list[float]:
    """Return each job's median seconds; they take turns, so a noisy moment hits all of them.

    Args:
        work: What to time.
        repeats: How many turns count.
        warm: Whether a first turn is made that does not count.
    """
    times: list[list[float]] = [[] for _ in work]
    for _ in range(repeats + warm):
        for job, seen in zip(work, times, strict=True):
            seen.append(seconds_of(job))
    return [statistics.median(seen[warm:]) for seen in times]


def with_threads(count: int, job: Callable[[], object]) -> Callable[[], object]:
    """Return the same job with so many of torch's threads."""
    import torch

    def limited() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            job()
        finally:
            torch.set_num_threads(before)

    return limited


def seconds_of(job: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def say(text: str) -> None:
    """Show a line at once, also in a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def in_child(module: str, *arguments: object, **environment: str) -> Any:
    """Run a module in a process of its own and return the JSON of its last line.

    Its errors appear on this terminal. Memory can only be measured in a fresh process.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
