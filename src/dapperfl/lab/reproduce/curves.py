"""Figures 5 and 6: the best accuracy until each round, global and by domain."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from dapperfl.lab.compare.output import Document
from dapperfl.lab.compare.rows import Row, domains_of, number
from dapperfl.lab.compare.series import missing_seeds, series_of
from dapperfl.lab.compare.tables import accuracy_table
from dapperfl.lab.groups import Spread, spread
from dapperfl.lab.reproduce.accuracy import pairs
from dapperfl.lab.reproduce.beside import beside_table, verdict
from dapperfl.lab.reproduce.drawing import ACCURACY, draw_band, legend_below, panels, pen
from dapperfl.lab.reproduce.paper import claim, paper_table
from dapperfl.lab.reproduce.product import Product

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def render(title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return where the curves end, and the two figures."""
    every = series_of(rows)
    bases = list(dict.fromkeys(each.base for each in every))
    found = pairs(every)
    tables = []
    for base in bases:
        tables.append(accuracy_table([each for each in every if each.base == base], base))
        own = [pair for pair in found if pair.series.base == base]
        if own:
            tables.append(beside_table(own, base, paper_table("accuracy", base).place))
    domains = {base: domains_of(next(r for r in rows if r["base"] == base)) for base in bases}
    figures = {
        "": _figure([[(base, "global")] for base in bases], rounds, columns_of_legend=3),
        "-domains": _figure(
            [[(base, domain) for domain in domains[base]] for base in bases],
            rounds,
            columns_of_legend=5,
        ),
    }
    remarks = [*missing_seeds(every), f"{claim('curves')}.", *verdict(rows, found)]
    return Product(Document(title, tuple(tables), tuple(remarks)), figures)


def best_so_far(rounds: Sequence[Row], column: str) -> list[Spread]:
    """Return the best accuracy until each round, over seeds.

    A round counts once every seed has come to it.
    """
    by_seed: dict[str, list[Row]] = {}
    for row in rounds:
        by_seed.setdefault(row["seed"], []).append(row)
    curves = []
    for own in by_seed.values():
        own.sort(key=lambda row: int(row["round"]))
        curves.append(list(accumulate((number(row, column) for row in own), max)))
    return [spread(values) for values in zip(*curves, strict=False)]


def _figure(
    grid: Sequence[Sequence[tuple[str, str]]], rounds: Sequence[Row], *, columns_of_legend: int
) -> "Figure":
    """Draw a row of panels for each benchmark; a single column lies down."""
    cells = [cell for row in grid for cell in row]
    flat = all(len(row) == 1 for row in grid)
    shape = (1, len(cells)) if flat else (len(grid), max(map(len, grid)))
    figure = panels(*shape, width=4.2 if flat else 2.9, height=3.2 if flat else 2.4)
    labels = list(dict.fromkeys(row["label"] for row in rounds))
    for axes, (base, column) in zip(figure.axes, cells, strict=False):
        for index, label in enumerate(labels):
            own = [row for row in rounds if (row["base"], row["label"]) == (base, label)]
            if own:
                draw_band(axes, best_so_far(own, column), pen(index) | {"label": label})
        axes.set(title=base if flat else f"{base}: {column}", xlabel="round")
        axes.set_ylabel(ACCURACY if flat else "accuracy [%]")
    legend_below(figure, columns_of_legend)
    return figure
