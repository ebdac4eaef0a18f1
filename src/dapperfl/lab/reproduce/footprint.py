"""Figure 3, Tables 5 and 6: accuracy when all devices remove the same share of the parameters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dapperfl.lab.compare.output import Document
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series, missing_seeds, series_of
from dapperfl.lab.compare.tables import Cell, Table, accuracy_table, assembled, mean_std
from dapperfl.lab.display import human
from dapperfl.lab.reproduce.beside import Pair, beside_table, on_other_data, verdict
from dapperfl.lab.reproduce.drawing import (
    at_values,
    draw_means,
    legend_below,
    panels,
    pen,
)
from dapperfl.lab.reproduce.paper import Cells, paper_table
from dapperfl.lab.reproduce.product import Product

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN_NET = "weakest_accuracy"  # column: of the compact net of the smallest level, here of all


def render(title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return accuracy and size by ratio, and the figure."""
    every = series_of(rows)
    tables, all_pairs = [], []
    for base in dict.fromkeys(each.base for each in every):
        own = [each for each in every if each.base == base]
        printed = paper_table("footprint", base)
        found = [Pair(each, cells) for each in own if (cells := _printed(each)) is not None]
        tables += [accuracy_table(own, base), _sizes(own, base)]
        if found:
            tables.append(beside_table(found, base, printed.place))
        all_pairs += found
    remarks = [*missing_seeds(every), *verdict(rows, all_pairs)]
    return Product(
        Document(title, tuple(tables), tuple(remarks)), {"": _figure(every, on_other_data(rows))}
    )


def ratio(each: Series) -> float:
    """Return the share of the parameters that every device removes."""
    return float((each.setting("fleet.rhos") or "[0]").strip("[]"))


def _printed(each: Series) -> Cells | None:
    rows = paper_table("footprint", each.base).rows
    return rows.get(f"{ratio(each):g}") if each.method == "dapperfl" else None


def _sizes(every: Sequence[Series], base: str) -> Table:
    """Return parameters, MACs and accuracy of a device's net, counted on the shrunk net."""

    def column(name: str) -> list[Cell]:
        return [Cell(human(each.over(f"weakest_{name}").mean).strip()) for each in every]

    def of_paper(name: str) -> list[Cell]:
        found = [_printed(each) for each in every]
        return [Cell(f"{cells[name].mean:.2f} M" if cells else "–") for cells in found]

    columns = {
        "its accuracy": [Cell(mean_std(each.over(OWN_NET))) for each in every],
        "parameters": column("parameters"),
        "paper's": of_paper("parameters"),
        "MACs": column("macs"),
        "paper's FLOPs": of_paper("macs"),
    }
    note = (
        "Of the net that a device takes home; its accuracy [%] is after the last round, mean over "
        "domains. Where no device holds the whole net, this is the one that was trained. The "
        "paper's figures are a share 1 - ρ of the full net's, not counted; what it calls FLOPs are "
        "MACs."
    )
    labels = [each.label for each in every]
    return assembled(f"{base}: the devices' nets", labels, {**columns}, note)


def _figure(every: Sequence[Series], elsewhere: Sequence[str]) -> "Figure":
    bases = list(dict.fromkeys(each.base for each in every))
    ratios = sorted({ratio(each) for each in every})
    figure = panels(1, len(bases))
    for axes, base in zip(figure.axes, bases, strict=True):
        own = [each for each in every if each.base == base]
        names = list(dict.fromkeys(_method(each) for each in own))
        for index, name in enumerate(names):
            line = sorted((each for each in own if _method(each) == name), key=ratio)
            places = [ratios.index(ratio(each)) for each in line]
            look = pen(index) | {"linestyle": "-"}
            draw_means(axes, places, [each.over("best") for each in line], look | {"label": name})
            taken = [each.over(OWN_NET) for each in line]
            draw_means(axes, places, taken, look | {"linestyle": "--", "markerfacecolor": "none"})
        label = f"DapperFL in the paper{', on its data' if elsewhere else ''}"
        _draw_paper(axes, base, ratios, label)
        axes.set(title=base, ylabel="accuracy [%]")
        at_values(axes, ratios, "pruning ratio ρ of every device")
        axes.plot([], [], color="black", label="global net, best round")
        axes.plot([], [], "--", color="black", label="net that devices take home")
    legend_below(figure, 2 * len(bases))
    return figure


def _draw_paper(axes: "Axes", base: str, ratios: Sequence[float], label: str) -> None:
    printed = paper_table("footprint", base).rows
    known = [value for value in ratios if f"{value:g}" in printed]
    places = [ratios.index(value) for value in known]
    heights = [printed[f"{value:g}"]["global"].mean for value in known]
    axes.plot(places, heights, color="#767676", linestyle=":", marker="x", label=label)


def _method(each: Series) -> str:
    return each.label.rpartition(" ρ=")[0]
