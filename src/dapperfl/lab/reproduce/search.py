"""Figure 7: Bayesian search for epsilon.

Every trial is an ordinary run, resumable and with a row of its own. The search looks at what
devices keep aside; test accuracy, which the paper searched by, is only shown.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from dapperfl.lab.compare.output import Document
from dapperfl.lab.compare.planned import Base, Planned, plan_runs
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series, missing_seeds, series_of
from dapperfl.lab.compare.tables import Cell, Table, assembled
from dapperfl.lab.compare.variants import Variant
from dapperfl.lab.reproduce.beside import on_other_data
from dapperfl.lab.reproduce.drawing import ACCURACY, legend_below, panels
from dapperfl.lab.reproduce.paper import claim
from dapperfl.lab.reproduce.plans import Point, at_point
from dapperfl.lab.reproduce.product import Product

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = "method.epsilon"
_STEPS = 2000  # of 0.0001 each: values below 0.2
SPACE = f"{KEY}=0..{(_STEPS - 1) / 10**4}"
_AT_ONCE = 4  # trials that know nothing of each other; not the workers, or they would decide
_BINS = (0.0, 0.05, 0.1, 0.15, 0.2)
Scores = Mapping[tuple[str, int], float]  # by a run's key, on what devices keep aside
Do = Callable[[Sequence[Planned]], Scores | None]


def search(base: Base, method: Variant, *, seeds: Sequence[int], trials: int, do: Do) -> None:
    """Run so many trials, a few at a time.

    Args:
        base: What all trials share.
        method: Whose epsilon is searched.
        seeds: Every trial is the mean over these.
        trials: How many values are tried.
        do: Has runs done and returns the scores of those that ended well; None: no more of it.
    """
    from dapperfl.lab.tuning.sampling import propose, require_optuna
    from dapperfl.lab.tuning.space import parse_space
    from dapperfl.lab.tuning.trials import Plan, Trial

    require_optuna()
    config = base.resolve(method)
    plan = Plan(config, parse_space([SPACE], config), tuple(seeds), "gp")
    past: list[Trial] = []
    while len(past) < trials:
        batch: list[dict[str, float]] = []
        for number in range(len(past), min(trials, len(past) + _AT_ONCE)):
            proposed = propose(plan, number, past, batch) or {KEY: 0.0}
            tried = [each.values[KEY] for each in past] + [each[KEY] for each in batch]
            batch.append({KEY: distinct(proposed[KEY], tried)})
        own = [plan_runs(base, [_trial(method, values)], seeds) for values in batch]
        found = do([run for each in own for run in each])
        if found is None:
            return
        for values, each in zip(batch, own, strict=True):
            scores = [found[run.key] for run in each if run.key in found]
            score = fmean(scores) if scores else None
            state: Literal["failed", "complete"] = "complete" if scores else "failed"
            past.append(Trial(len(past), state, values, score, {}, 0.0, {}))


def distinct(value: float, tried: Sequence[float]) -> float:
    """Return the nearest value of four digits that was not tried yet."""
    free = [place for place in range(_STEPS) if place / 10**4 not in tried]
    return min(free, key=lambda place: abs(place / 10**4 - value)) / 10**4


def _trial(method: Variant, values: Mapping[str, float]) -> Variant:
    point = Point(f"epsilon={values[KEY]:g}", (f"{KEY}={values[KEY]:g}",))
    return at_point(method, point)


def render(title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return the trials by range of epsilon, the best ones, and the figure."""
    every = sorted(series_of(rows), key=epsilon)
    chosen = max(every, key=lambda each: each.over("validation").mean)
    remarks = [
        *missing_seeds(every),
        *on_other_data(rows),
        f"{claim('epsilon-search')}.",
        f"Here the search, which looks at what devices keep aside, prefers epsilon="
        f"{epsilon(chosen):g}; {_trend(every)}",
    ]
    tables = (_by_range(every), _best(every))
    return Product(Document(title, tables, tuple(remarks)), {"": _figure(every)})


def epsilon(each: Series) -> float:
    """Return the value that a trial tried."""
    return float(each.setting(KEY) or "nan")


def _trend(every: Sequence[Series]) -> str:
    low = [each.over("best").mean for each in every if epsilon(each) < _BINS[2]]
    high = [each.over("best").mean for each in every if epsilon(each) >= _BINS[2]]
    if not low or not high:
        return f"all {len(every)} values are on one side of {_BINS[2]:g}."
    alike = "as" if max(high) > max(low) else "unlike"
    return (
        f"the highest accuracy is {max(low):.1f} below epsilon={_BINS[2]:g} and {max(high):.1f} "
        f"above it, {alike} in the paper."
    )


def _by_range(every: Sequence[Series]) -> Table:
    rows = []
    for low, high in pairwise(_BINS):
        own = [each.over("best").mean for each in every if low <= epsilon(each) < high]
        numbers = [f"{fmean(own):.2f}", f"{max(own):.2f}"] if own else ["–", "–"]
        rows.append([str(len(own)), *numbers])
    labels = [f"{low:g} to {high:g}" for low, high in pairwise(_BINS)]
    columns = {
        head: [Cell(row[at]) for row in rows]
        for at, head in enumerate(("trials", "mean", "highest"))
    }
    return assembled(
        "Test accuracy [%] of the best round, by range of epsilon", labels, {**columns}
    )


def _best(every: Sequence[Series]) -> Table:
    best = sorted(every, key=lambda each: -each.over("validation").mean)[:5]
    columns = {
        head: [Cell(f"{each.over(column).mean:.2f}") for each in best]
        for head, column in (("kept aside", "validation"), ("best", "best"), ("last five", "last5"))
    }
    labels = [f"epsilon={epsilon(each):g}" for each in best]
    note = (
        "The five trials that do best on what devices keep aside (mean of the last five rounds), "
        "with their test accuracy [%]."
    )
    return assembled("The best trials", labels, {**columns}, note)


def _figure(every: Sequence[Series]) -> "Figure":
    figure = panels(1, 1, width=5.2, height=3.4)
    [axes] = figure.axes
    values = [epsilon(each) for each in every]
    tested = [each.over("best").mean for each in every]
    aside = [each.over("validation").mean for each in every]
    highest = [max(tested[: place + 1]) for place in range(len(tested))]
    axes.plot(values, highest, color="#0072B2", drawstyle="steps-post", label="highest so far")
    axes.scatter(values, tested, s=22, color="#D55E00", label="test, best round", zorder=3)
    axes.scatter(values, aside, s=22, color="#767676", marker="x", label="kept aside, last five")
    axes.set(xlabel="epsilon", ylabel=ACCURACY, xlim=(-0.004, 0.204))
    legend_below(figure, 3)
    return figure
