"""What is asked of a schedule, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapperfl.lab.config import Config


@dataclass(frozen=True)
class Job:
    """One run to be done: its name on the screen, its config, its folder."""

    name: str
    config: Config
    out: Path


@dataclass(frozen=True)
class Outcome:
    """How a job ended: with the summary that lies in its folder, or with an error in one line."""

    job: Job
    summary: Mapping[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Progress:
    """How far a running job is; accuracies in percent, over the domains."""

    job: Job
    device: str
    round: int = 0  # the last complete one
    last: float | None = None  # None before the first round
    best: float | None = None
    seconds: float | None = None  # per round, of those computed since the job was started
