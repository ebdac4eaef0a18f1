"""Tables 1 and 2: all methods on one benchmark."""

from collections.abc import Sequence

from dapperfl.lab.compare.output import Document, standard_tables
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series, missing_seeds, series_of
from dapperfl.lab.reproduce.beside import Pair, beside_table, verdict
from dapperfl.lab.reproduce.paper import paper_table
from dapperfl.lab.reproduce.product import Product


def render(title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return the table as in the paper, what it does not show, and both side by side."""
    every = series_of(rows)
    base = every[0].base
    found = pairs(every)
    tables = standard_tables(every, f"{base}, protocol {rows[0]['protocol']}")
    if found:
        tables.append(beside_table(found, base, paper_table("accuracy", base).place))
    remarks = [*missing_seeds(every), *verdict(rows, found)]
    return Product(Document(title, tuple(tables), tuple(remarks)))


def pairs(every: Sequence[Series]) -> list[Pair]:
    """Return the variants that the paper has a number for; all presets stand beside the same."""
    printed = {each.base: paper_table("accuracy", each.base).rows for each in every}
    return [
        Pair(each, printed[each.base][each.method])
        for each in every
        if each.method in printed[each.base]
    ]
