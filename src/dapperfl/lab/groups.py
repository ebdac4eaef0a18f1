"""Runs that differ in their seed only, as one thing with a mean and a spread."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from statistics import fmean, stdev
from typing import Any, Literal

from dapperfl.data import benchmarks
from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config, MethodConfig, to_keys
from dapperfl.lab.fields import is_among, show
from dapperfl.lab.gather import Run
from dapperfl.lab.summary import marks

Mark = Literal["best", "last", "last5"]
MARKS: Mapping[Mark, str] = {
    "last5": "mean of the last five rounds",
    "best": "best round",
    "last": "last round",
}
# Where and by which hands a run was computed says nothing about what was computed.
_IRRELEVANT = (
    *("data.root", "engine."),
    *("deploy.deadline", "deploy.min_replies", "deploy.devices", "deploy.patience"),
)
_RELEVANT = ("engine.precision",)


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    std: float | None  # of a sample (divided by n - 1); None for a single seed
    low: float
    high: float
    count: int


def spread(values: Iterable[float]) -> Spread:
    """Return mean, sample standard deviation and range of at least one value."""
    given = list(values)
    std = stdev(given) if len(given) > 1 else None
    return Spread(fmean(given), std, min(given), max(given), len(given))


@dataclass(frozen=True)
class Group:
    """Runs of one setting with different seeds."""

    label: str  # method:preset, and what else tells it from the groups beside it
    runs: tuple[Run, ...]

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The runs that the numbers are taken from, one a seed, in the order of their seeds.

        Those that are finished; where none is, those that have at least one round.
        """
        furthest: dict[int, Run] = {}
        for run in sorted(self.runs, key=lambda run: (run.summary is not None, len(run.lines))):
            furthest[run.seed] = run
        chosen = [furthest[seed] for seed in sorted(furthest)]
        finished = tuple(run for run in chosen if run.summary is not None)
        return finished or tuple(run for run in chosen if run.lines)

    @property
    def finished(self) -> bool:
        """Whether the numbers are final."""
        return any(run.summary is not None for run in self.counted)

    @property
    def benchmark(self) -> str:
        """The pictures that its runs learnt from."""
        return self.runs[0].benchmark

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of its first run; only the seed differs in the others."""
        return self.runs[0].settings

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains it was tested on; a seed may lack one of which nothing was kept aside."""
        found = dict.fromkeys(name for run in self.counted for name in run.lines[-1].accuracy)
        return tuple(found)

    def mark(self, mark: Mark, domain: str | None = None) -> Spread:
        """Return the best, last or last five rounds' accuracy of a domain; None: of their mean."""
        return spread(marks(each)[mark] for each in self._accuracies(domain))

    def curve(self, domain: str | None = None) -> list[Spread]:
        """Return the accuracy after each round, over the runs that have come so far."""
        columns = zip_longest(*self._accuracies(domain))
        return [spread(value for value in column if value is not None) for column in columns]

    def _accuracies(self, domain: str | None) -> list[list[float]]:
        """Return the accuracy after each round of each run that has the domain; None: the mean."""
        if domain is None:
            return [[line.mean for line in run.lines] for run in self.counted]
        return [
            [line.accuracy[domain] for line in run.lines]
            for run in self.counted
            if domain in run.lines[-1].accuracy
        ]

    @property
    def most_held(self) -> Spread:
        """The parameters of the largest net that any client held."""
        return spread(
            max((c.peak_parameters for line in run.lines for c in line.costs.values()), default=0)
            for run in self.counted
        )

    def cost(self, field: str) -> Spread:
        """Return what one client spends in one round on average, by a field of `ClientCost`."""
        return spread(
            fmean(
                [getattr(cost, field) for line in run.lines for cost in line.costs.values()] or [0]
            )
            for run in self.counted
        )


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Put the runs together that differ in their seed only, in the order they come."""
    parts: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for run in runs:
        parts[tuple(sorted(_identity(run).items()))].append(run)
    bundles = list(parts.values())
    homes: dict[str, list[Run]] = defaultdict(list)
    for first, *_ in bundles:
        homes[first.benchmark].append(first)
    return [Group(_label(own[0], homes[own[0].benchmark]), tuple(own)) for own in bundles]


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the settings beside the seed in which some of the runs are unlike the others."""
    identities = [_identity(run) for run in runs]
    keys = dict.fromkeys(key for identity in identities for key in identity)
    return [key for key in keys if len({identity.get(key) for identity in identities}) > 1]


def _label(own: Run, all_runs: Sequence[Run]) -> str:
    """Name a run by its method, and by the settings that its neighbours or its preset lack."""
    alike = [run for run in all_runs if run.method == own.method]
    keys = [key for key in differing(all_runs) if not key.startswith("method.")]
    told = {key for key in differing(alike) if key.startswith("method.")} | _changed(own)
    values = _identity(own)
    keys += [key for key in values if key in told] + sorted(told - values.keys())
    parts = [f"{key.removeprefix('method.')}={values.get(key, '–')}" for key in keys]
    return " ".join([own.method, *parts])


def _changed(run: Run) -> set[str]:
    """Return the settings of its method that are not as the preset that names it has them."""
    name, preset = run.settings["method.name"], run.settings["method.preset"]
    if ":" in name:  # somebody's own code is not run by who looks at results
        return set()
    with suppress(ConfigError):  # of a method or preset that there is no more
        usual = to_keys(replace(Config(), method=MethodConfig(name=name, preset=preset)))
        return {
            key
            for key, value in usual.items()
            if key.startswith("method.") and run.settings.get(key, value) != value
        }
    return set()


def _identity(run: Run) -> dict[str, str]:
    relevant = (*_RELEVANT, *benchmarks.naming_keys(run.benchmark))
    return {
        key: show(value).strip('"')
        for key, value in run.settings.items()
        if key != "seed" and (key in relevant or not is_among(key, _IRRELEVANT))
    }
