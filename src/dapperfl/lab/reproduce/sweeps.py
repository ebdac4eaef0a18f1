"""Figure 4: the effect of one hyper-parameter, all others as they are."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from dapperfl.lab.compare.output import Document
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series, missing_seeds, series_of
from dapperfl.lab.compare.tables import Cell, Table, assembled, ranked
from dapperfl.lab.groups import Spread, spread
from dapperfl.lab.reproduce.beside import on_other_data
from dapperfl.lab.reproduce.drawing import (
    ACCURACY,
    at_values,
    draw_means,
    legend_below,
    panels,
    pen,
)
from dapperfl.lab.reproduce.paper import best_value, paper_table
from dapperfl.lab.reproduce.product import Product

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AVERAGE = "AVG"
Lines = Mapping[str, Mapping[float, Spread]]  # accuracy by benchmark (or AVG) and value
Render = Callable[[str, Sequence[Row], Sequence[Row]], Product]


def render_sweep(field: str) -> Render:
    """Return what renders the sweep of a field."""
    return partial(_render, field)


def _render(field: str, title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    every = series_of(rows)
    methods = list(dict.fromkeys(_method(each, field) for each in every))
    lines = {
        name: lines_of([each for each in every if _method(each, field) == name], field)
        for name in methods
    }
    tables = tuple(_table(name, field, lines[name]) for name in methods)
    remarks = [*missing_seeds(every), *on_other_data(rows)]
    remarks += [_verdict(name, field, lines[name]) for name in methods]
    return Product(
        Document(title, tables, tuple(remarks)), {"": _figure(field, lines, on_other_data(rows))}
    )


def _method(each: Series, field: str) -> str:
    return each.label.rpartition(f" {field}=")[0]


def lines_of(every: Sequence[Series], field: str) -> Lines:
    """Return best-round accuracy by benchmark and value, and the mean over benchmarks.

    The mean is taken seed by seed, where all benchmarks have the value.
    """
    found: dict[str, dict[float, dict[int, float]]] = {}
    for each in every:
        value = float(each.setting(f"method.{field}") or "nan")
        found.setdefault(each.base, {})[value] = each.by_seed("best")
    lines = {
        base: {value: spread(own[value].values()) for value in sorted(own)}
        for base, own in found.items()
    }
    if len(found) < 2:
        return lines
    shared = sorted(set.intersection(*(set(own) for own in found.values())))
    lines[AVERAGE] = {}
    for value in shared:
        seeds = sorted(set.intersection(*(set(own[value]) for own in found.values())))
        if seeds:
            lines[AVERAGE][value] = spread(
                sum(own[value][seed] for own in found.values()) / len(found) for seed in seeds
            )
    return lines


def _table(name: str, field: str, lines: Lines) -> Table:
    values = sorted({value for own in lines.values() for value in own})
    columns: dict[str, Sequence[Cell]] = {
        base: ranked([own.get(value) for value in values]) for base, own in lines.items()
    }
    labels = [f"{field}={value:g}" for value in values]
    note = "Accuracy [%] in the best round, mean (std) over seeds; AVG is over benchmarks."
    return assembled(f"{name}: the effect of {field}", labels, columns, note)


def _verdict(name: str, field: str, lines: Lines) -> str:
    value, place = best_value(field)
    judged = AVERAGE if lines.get(AVERAGE) else next(iter(lines))
    own = lines[judged]
    best = max(own, key=lambda each: own[each].mean)
    text = f"{name}: best on {judged} at {field}={best:g} ({own[best].mean:.1f})"
    if value in own:
        there = own[value]
        text += f"; at {value:g}, the paper's best ({place}), {there.mean:.1f}"
        if there.std is not None:
            text += f" (std {there.std:.1f})"
    if own[best].count < 2:
        return f"{text}. One seed, so no verdict."
    agrees = "agrees" if best == value else "differs"
    return f"{text}. This {agrees}."


def _figure(field: str, lines: Mapping[str, Lines], elsewhere: Sequence[str]) -> "Figure":
    figure = panels(1, len(lines))
    for axes, (name, own) in zip(figure.axes, lines.items(), strict=True):
        values = sorted({value for line in own.values() for value in line})
        for index, (base, line) in enumerate(own.items()):
            places = [values.index(value) for value in line]
            draw_means(axes, places, list(line.values()), pen(index) | {"label": base})
        _draw_paper(axes, field, values, list(own), elsewhere)
        axes.set(title=name, ylabel=ACCURACY)
        at_values(axes, values, field)
    legend_below(figure, 2 * len(lines))
    return figure


def _draw_paper(
    axes: "Axes",
    field: str,
    values: Sequence[float],
    bases: Sequence[str],
    elsewhere: Sequence[str],
) -> None:
    """Mark the paper's best value and its accuracies there, the only ones it has numbers for.

    Each has the colour of its benchmark's line; an average is taken over the benchmarks drawn.
    """
    best, _ = best_value(field)
    if best not in values:
        return
    heights = {
        base: paper_table("accuracy", base).rows["dapperfl"]["global"].mean
        for base in bases
        if base != AVERAGE
    }
    if AVERAGE in bases:
        heights[AVERAGE] = fmean(heights.values())
    for index, base in enumerate(bases):
        colour = pen(index)["color"]
        axes.scatter(values.index(best), heights[base], marker="x", color=colour, zorder=3)
    label = f"paper's best{', on its data' if elsewhere else ''}"
    axes.scatter([], [], marker="x", color="#767676", label=label)
