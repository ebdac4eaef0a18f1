"""Our numbers beside the paper's, and where they differ."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series
from dapperfl.lab.compare.tables import Cell, Table, assembled
from dapperfl.lab.groups import Spread
from dapperfl.lab.reproduce.paper import NOTEWORTHY, Cells, Printed, gap
from dapperfl.lab.reproduce.plans import FILES
from dapperfl.lab.resolve import read_toml


@dataclass(frozen=True)
class Pair:
    """A variant of ours and what the paper prints for it."""

    series: Series
    printed: Cells


def beside_table(pairs: Sequence[Pair], title: str, place: str) -> Table:
    """Return ours, the paper's and the difference, in every column that both have."""
    columns = list(dict.fromkeys(name for pair in pairs for name, _, _ in _common(pair)))
    cells: dict[str, list[Cell]] = {name: [] for name in columns}
    for pair in pairs:
        found = {name: (ours, printed) for name, ours, printed in _common(pair)}
        for name in columns:
            cells[name].append(Cell(_text(*found[name]) if name in found else "–"))
    labels = [pair.series.label for pair in pairs]
    note = f"Ours, the paper's ({place}), and ours minus the paper's; best round, percent."
    return assembled(f"{title}: beside the paper", labels, {**cells}, note)


def _common(pair: Pair) -> Iterator[tuple[str, Spread, Printed]]:
    """Yield the columns of accuracy that both have."""
    for name, printed in pair.printed.items():
        if name == "global":
            yield name, pair.series.over("best"), printed
        elif name in pair.series.domains:
            yield name, pair.series.over(f"{name}_best"), printed


def _text(ours: Spread, printed: Printed) -> str:
    return f"{ours.mean:.1f} / {printed.mean:.1f} ({gap(ours, printed):+.1f})"


def differences(pairs: Iterable[Pair]) -> list[str]:
    """Say where we are further from the paper than is worth a word."""
    found = []
    for pair in pairs:
        far = [
            f"{name} {_text(ours, printed)}"
            for name, ours, printed in _common(pair)
            if abs(gap(ours, printed)) > NOTEWORTHY
        ]
        if far:
            found.append(
                f"{pair.series.base}, {pair.series.label} is more than {NOTEWORTHY:g} points from "
                f"the paper: {'; '.join(far)}."
            )
    return found or [f"No number is more than {NOTEWORTHY:g} points from the paper's."]


def on_other_data(rows: Iterable[Row]) -> list[str]:
    """Say if these are not the paper's benchmarks, so that nobody compares what cannot be."""
    return [
        f"{said}: its numbers stand beside ours for orientation only." for said in data_of(rows)
    ]


def data_of(rows: Iterable[Row]) -> list[str]:
    """Say on what runs were done, if that is not the paper's benchmarks."""
    own = {name: read_toml(path)["data"]["benchmark"] for name, path in FILES.items()}
    others = sorted({row["benchmark"] for row in rows if row["benchmark"] != own[row["base"]]})
    return [f"Run on {', '.join(others)}, not on the paper's data"] if others else []


def verdict(rows: Sequence[Row], pairs: Iterable[Pair]) -> list[str]:
    """Say where we differ from the paper, or why that cannot be said."""
    return on_other_data(rows) or differences(pairs)
