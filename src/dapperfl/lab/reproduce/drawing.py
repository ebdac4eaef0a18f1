"""What all figures share: panels, and pens that differ in colour, dashes and marks."""

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dapperfl.data.extras import demo_packages
from dapperfl.lab.groups import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = "os^Dv*PX"
_DASHES = ("-", "--", "-.", ":")
ACCURACY = "global accuracy [%]"


def panels(rows: int, columns: int, *, width: float = 3.6, height: float = 3.0) -> "Figure":
    """Return a figure with a grid of axes."""
    with demo_packages("a figure"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    size = (1.0 + width * columns, 0.9 + height * rows)
    figure = Figure(figsize=size, layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    figure.subplots(rows, columns, squeeze=False)
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def pen(index: int) -> dict[str, Any]:
    """Return how the line of a place in the legend looks; never by colour alone."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKS[index % len(_MARKS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.6,
    }


def draw_means(
    axes: "Axes", places: Sequence[float], values: Sequence[Spread], look: dict[str, Any]
) -> None:
    """Draw means as a line, with bars of one standard deviation."""
    deviations = [value.std or 0.0 for value in values]
    means = [value.mean for value in values]
    bars = deviations if any(deviations) else None
    axes.errorbar(places, means, yerr=bars, capsize=2.5, elinewidth=0.9, **look)


def draw_seeds(axes: "Axes", place: int, values: Sequence[float], *, ours: bool) -> None:
    """Draw every seed of a method as a dot on its line, and their mean as a bar."""
    colour = _COLOURS[1 if ours else 0]
    axes.plot(values, [place] * len(values), "o", color=colour, alpha=0.5, ms=5, mew=0)
    if values:
        mean = fmean(values)
        axes.plot([mean, mean], [place - 0.32, place + 0.32], color=colour, lw=2.4)


def draw_band(axes: "Axes", values: Sequence[Spread], look: dict[str, Any]) -> None:
    """Draw means round by round, with a band from the lowest to the highest seed."""
    from matplotlib.ticker import MaxNLocator

    rounds = range(1, len(values) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    every = max(1, len(values) // 8)
    axes.plot(rounds, [value.mean for value in values], markevery=every, **look)
    if any(value.count > 1 for value in values):
        low, high = ([getattr(value, end) for value in values] for end in ("low", "high"))
        axes.fill_between(rounds, low, high, color=look["color"], alpha=0.12, linewidth=0)


def at_values(axes: "Axes", values: Sequence[float], label: str) -> None:
    """Give each value of a sweep the same room, whatever its size."""
    axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes.set_xlabel(label)


def legend_below(figure: "Figure", columns: int) -> None:
    """Put one legend for all panels below them."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=columns, frameon=False
    )
