"""What a study asks, what a trial came to, and how far one is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dapperfl.lab.config import Config
from dapperfl.lab.tuning.space import Dimension

SamplerName = Literal["tpe", "gp"]
State = Literal["complete", "stopped", "failed"]
START = 0  # the number of the trial with the config's own values


@dataclass(frozen=True)
class Plan:
    """What a study is about, and who proposes its trials."""

    config: Config
    space: tuple[Dimension, ...]
    seeds: tuple[int, ...]
    sampler: SamplerName


@dataclass(frozen=True)
class Trial:
    """How one choice of values did; accuracies in percent, on what devices keep aside.

    The score of a complete trial is the mean over its seeds of the last five rounds' accuracy, of
    which each is the mean over domains. A stopped one has what its last seed had reached.
    """

    number: int
    state: State
    values: Mapping[str, Any]  # by key
    score: float | None  # None: it failed
    steps: Mapping[int, float]  # the running score after each round, of one seed after another
    seconds: float
    validation: Mapping[str, float]  # the score by domain; of complete trials only
    error: str = ""
    left_out: int = 0  # client rounds without an update; of complete trials only


@dataclass(frozen=True)
class Progress:
    """A running trial after one more round."""

    number: int
    values: Mapping[str, Any]
    step: int = 0  # rounds over all seeds
    score: float | None = None  # of the seed that is running; None before its first round


def best_of(trials: list[Trial]) -> Trial:
    """Return the complete trial with the highest score, the earliest of equals."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: (trial.score or 0.0, -trial.number))
