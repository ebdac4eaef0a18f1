"""A fair comparison: all methods with the same ingredients, each at its best learning rate.

What DapperFL's default has that any method can have (restyled pictures, weights, a running mean) is
given to all. The rates are chosen by pictures that no device trained with, of the same three for
all; then the test pictures are looked at, once, with more seeds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dapperfl.lab.compare.output import Document, standard_tables
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series, missing_seeds, series_of
from dapperfl.lab.compare.tables import aside_table
from dapperfl.lab.compare.variants import Variant
from dapperfl.lab.reproduce.beside import data_of
from dapperfl.lab.reproduce.drawing import draw_seeds, panels
from dapperfl.lab.reproduce.plans import Plan, at_point
from dapperfl.lab.reproduce.product import Product

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "dapperfl:default"


def best_rates(plan: Plan, rows: Sequence[Row], seeds: Sequence[int]) -> list[Variant]:
    """Return each method at its best rate; one that lacks a run at any rate is left out.

    Args:
        plan: The methods, and the rates as points.
        rows: What was found on one benchmark.
        seeds: What to judge by: the same for all rates.
    """
    asides = {each.label: each.by_seed("validation") for each in series_of(rows)}
    found = []
    for method in plan.methods:
        tried = [at_point(method, point) for point in plan.points]
        own = [asides.get(variant.label or "", {}) for variant in tried]
        if all(set(seeds) <= set(each) for each in own):
            sums = [sum(each[seed] for seed in seeds) for each in own]
            found.append(tried[sums.index(max(sums))])
    return found


def render_rates(title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return what each rate gave each method on pictures kept aside."""
    every = series_of(rows)
    tables = tuple(aside_table(own, base) for base, own in _by_base(every).items())
    remarks = [*missing_seeds(every), *(f"{said}." for said in data_of(rows))]
    return Product(Document(title, tables, tuple(remarks)))


def render(title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return accuracy, costs, and how far each method is from ours, paired by seed."""
    every = series_of(rows)
    tables = [
        table
        for base, own in _by_base(every).items()
        for table in standard_tables(own, base, _ours(own))
    ]
    remarks = [*missing_seeds(every), *(f"{said}." for said in data_of(rows))]
    document = Document(title, tuple(tables), tuple(remarks))
    return Product(document, {"": _figure(_by_base(every))})


def _by_base(every: Sequence[Series]) -> dict[str, list[Series]]:
    bases = dict.fromkeys(each.base for each in every)
    return {base: [each for each in every if each.base == base] for base in bases}


def _ours(every: Sequence[Series]) -> str | None:
    """Return the label of our method, which has its rate in it."""
    return next((each.label for each in every if each.label.startswith(OURS)), None)


def _figure(found: dict[str, list[Series]]) -> "Figure":
    """Draw every seed of every method as a dot, and their mean as a line."""
    most = max(len(own) for own in found.values())
    figure = panels(1, len(found), width=4.6, height=0.6 + 0.32 * most)
    for axes, (base, own) in zip(figure.axes, found.items(), strict=True):
        for place, each in enumerate(own):
            values = list(each.by_seed("last5").values())
            draw_seeds(axes, place, values, ours=each.label.startswith(OURS))
        axes.set_yticks(range(len(own)), [each.label for each in own])
        axes.invert_yaxis()
        axes.set(title=base, xlabel="accuracy of the last five rounds [%]")
    return figure
