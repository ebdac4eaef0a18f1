"""The two pictures of a study: which keys matter, and the score along each of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from dapperfl.lab.tuning.space import Choice, Dimension
from dapperfl.lab.tuning.trials import START, Trial, best_of

# Okabe and Ito's colours, which the colour-blind can tell apart; shapes differ as well.
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#767676"
_COLUMNS = 3  # at most; four keys make a square


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    return figure


def draw_importance(shares: Mapping[str, float]) -> Any:
    """Return a figure with a bar for each key, the most important one on top."""
    figure = _figure(7, 1.6 + 0.4 * max(1, len(shares)))
    axes = figure.subplots()
    axes.set_title("How much of the score's variation each key explains", fontsize=11)
    if not shares:
        axes.text(0.5, 0.5, "too few different trials to tell", ha="center", va="center")
        axes.set_axis_off()
    else:
        keys = list(shares)
        bars = axes.barh(keys, [100 * shares[key] for key in keys], color=_BLUE)
        axes.bar_label(bars, [f" {100 * shares[key]:.0f} %" for key in keys])
        axes.invert_yaxis()
        axes.set(xlim=(0, 112), xlabel="share [%] (fANOVA)")
        axes.set_xticks(range(0, 101, 20))
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_slices(space: Sequence[Dimension], trials: Sequence[Trial]) -> Any:
    """Return a figure with every trial's score over the value of each key."""
    columns = 2 if len(space) == 4 else min(_COLUMNS, len(space))
    rows = -(-len(space) // columns)
    figure = _figure(max(5.5, 3.4 * columns), 1.0 + 2.9 * rows)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for axes, dimension in zip(grid, space, strict=False):
        _slice(axes, dimension, trials)
    for axes in grid[len(space) :]:
        axes.set_axis_off()
    for axes in grid[::columns]:
        axes.set_ylabel("validation accuracy [%]")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _slice(axes: Any, dimension: Dimension, trials: Sequence[Trial]) -> None:
    at = _places(dimension)
    best = best_of(list(trials))
    scored = [trial for trial in trials if trial.score is not None]
    others = [trial for trial in scored if trial.number not in (START, best.number)]
    kinds = {
        "complete": dict(marker="o", s=28, color=_BLUE, alpha=0.75, label="complete"),
        "stopped": dict(marker="x", s=26, color=_GREY, label="stopped early, where it was"),
    }
    for state, look in kinds.items():
        own = [trial for trial in others if trial.state == state]
        axes.scatter([at(t.values[dimension.key]) for t in own], [t.score for t in own], **look)
    start = scored[0]
    axes.axhline(start.score, color="black", linestyle=":", linewidth=1.2, label="start")
    mark = dict(marker="D", s=34, facecolors="none", edgecolors="black", linewidths=1.3)
    axes.scatter([at(start.values[dimension.key])], [start.score], zorder=3, **mark)
    star = dict(marker="*", s=190, color=_ORANGE, edgecolors="black", linewidths=0.6, label="best")
    axes.scatter([at(best.values[dimension.key])], [best.score], zorder=4, **star)
    _label(axes, dimension)


def _places(dimension: Dimension) -> Any:
    """Return what maps a value to its place on the horizontal axis."""
    if not isinstance(dimension, Choice):
        return lambda value: float("nan") if isinstance(value, str) else value
    known = list(dimension.values)
    return lambda value: known.index(value) if value in known else float("nan")


def _label(axes: Any, dimension: Dimension) -> None:
    axes.set_xlabel(dimension.key)
    if isinstance(dimension, Choice):
        axes.set_xticks(range(len(dimension.values)), dimension.texts)
        axes.set_xlim(-0.5, len(dimension.values) - 0.5)
    elif dimension.log:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
