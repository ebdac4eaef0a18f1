"""Table 3: DapperFL without one or both of its modules."""

from collections.abc import Sequence

from dapperfl.lab.compare.output import Document
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series, missing_seeds, series_of
from dapperfl.lab.compare.tables import accuracy_table, paired_table
from dapperfl.lab.reproduce.beside import Pair, beside_table, verdict
from dapperfl.lab.reproduce.paper import paper_table
from dapperfl.lab.reproduce.product import Product

COMPLETE = "complete"


def render(title: str, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return the accuracy of each configuration, and how far it is from the complete method."""
    every = series_of(rows)
    tables, all_pairs = [], []
    for base in dict.fromkeys(each.base for each in every):
        own = [each for each in every if each.base == base]
        printed = paper_table("ablation", base)
        found = [Pair(each, printed.rows[_configuration(each)]) for each in own]
        tables += [accuracy_table(own, base), beside_table(found, base, printed.place)]
        tables += [
            paired_table(_of_preset(own, each), f"{base}, {_method(each)}", each.label)
            for each in own
            if _configuration(each) == COMPLETE and len(_of_preset(own, each)) > 1
        ]
        all_pairs += found
    remarks = [*missing_seeds(every), *verdict(rows, all_pairs)]
    return Product(Document(title, tuple(tables), tuple(remarks)))


def _configuration(each: Series) -> str:
    names = paper_table("ablation", each.base).rows
    return max((name for name in names if each.label.endswith(name)), key=len)


def _method(each: Series) -> str:
    return each.label.removesuffix(_configuration(each)).strip()


def _of_preset(every: Sequence[Series], like: Series) -> list[Series]:
    return [each for each in every if _method(each) == _method(like)]
