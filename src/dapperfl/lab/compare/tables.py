"""The tables of a comparison, still without a format.

Accuracies are percent on the test sets, mean (sample standard deviation over seeds).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.paired import difference
from dapperfl.lab.compare.series import Series, left_out
from dapperfl.lab.display import clock, human
from dapperfl.lab.groups import Spread
from dapperfl.lab.records import domain_column


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and whether it is the best (1) or the second (2) of its column."""

    text: str
    rank: int | None = None


@dataclass(frozen=True)
class Table:
    """A table with its title and what must be said about it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def mean_std(value: Spread, digits: int = 2) -> str:
    """Write a number over seeds; a single seed has no deviation."""
    mean = f"{value.mean:.{digits}f}"
    return mean if value.std is None else f"{mean} ({value.std:.{digits}f})"


def ranked(column: Sequence[Spread | None]) -> list[Cell]:
    """Write a column of numbers that are the better, the larger they are."""
    means = sorted({round(value.mean, 2) for value in column if value}, reverse=True)
    cells = []
    for value in column:
        place = means.index(round(value.mean, 2)) + 1 if value and len(means) > 1 else None
        cells.append(Cell(mean_std(value) if value else "–", place if place in (1, 2) else None))
    return cells


def assembled(
    title: str, first: Sequence[str], columns: dict[str, Sequence[Cell]], *notes: str
) -> Table:
    """Put a column of names and columns of cells together."""
    names = [Cell(name) for name in first]
    rows = tuple(zip(names, *columns.values(), strict=True))
    return Table(title, ("", *columns), rows, notes)


def accuracy_table(every: Sequence[Series], title: str) -> Table:
    """Return the table as in the paper: each domain's own best round, and that of their mean."""
    domains = list(dict.fromkeys(domain for each in every for domain in each.domains))
    columns: dict[str, Sequence[Cell]] = {
        domain_column(domain, ("global",)): ranked([s.of_domain(domain, "best") for s in every])
        for domain in domains
    }
    columns["global"] = ranked([each.over("best") for each in every])
    note = (
        "Accuracy [%] in the best round, mean (std) over seeds; best bold, second underlined. A "
        "domain's best round need not be that of the mean over domains (global)."
    )
    return assembled(
        f"{title}: accuracy as in the paper", _labels(every), columns, note, *left_out(every)
    )


def _labels(every: Sequence[Series]) -> list[str]:
    return [each.label for each in every]


def beyond_table(every: Sequence[Series], title: str) -> Table:
    """Return what the paper does not show: accuracy without a choice of the round."""
    columns: dict[str, Sequence[Cell]] = {
        "last round": ranked([each.over("last") for each in every]),
        "last five": ranked([each.over("last5") for each in every]),
        "worst domain": ranked([each.worst() for each in every]),
        "spread": [Cell(mean_std(each.range())) for each in every],
    }
    notes = [
        "Accuracy [%], mean (std) over seeds. Worst domain and spread (best minus worst domain) "
        "are of the mean of the last five rounds."
    ]
    if any(row.get("own_accuracy") for each in every for row in each.rows):
        columns["own model"] = ranked([_if_known(each, "own_accuracy") for each in every])
        notes.append(
            "Own model: the compact net that a device takes home, on its own domain, mean over "
            "devices, after the last round."
        )
    if any(row.get("own_calibrated") for each in every for row in each.rows):
        columns["calibrated"] = ranked([_if_known(each, "own_calibrated") for each in every])
        notes.append(
            "Calibrated: the same after each device has drawn the batch-norm statistics of its net "
            "towards its own pictures."
        )
    return assembled(f"{title}: what the paper does not show", _labels(every), columns, *notes)


def _if_known(each: Series, column: str) -> Spread | None:
    """Return a column that older rows do not have, where all runs have it."""
    return each.over(column) if all(row.get(column) for row in each.rows) else None


def cost_table(every: Sequence[Series], title: str) -> Table:
    """Return what a client spends."""

    def column(name: str, write: Callable[[float], str]) -> list[Cell]:
        found = [_if_known(each, name) for each in every]
        return [Cell("–" if value is None else write(value.mean)) for value in found]

    columns: dict[str, Sequence[Cell]] = {
        "parameters": column("parameters", _count),
        "most held": column("peak_parameters", _count),
        "FLOPs": column("flops", _count),
        "sent": column("bytes_up", lambda value: f"{human(value)}B"),
        "received": column("bytes_down", lambda value: f"{human(value)}B"),
        "time": column("seconds", clock),
    }
    note = (
        "Parameters of the net that is sent back, training FLOPs and bytes: mean of a client in a "
        "round. Most held: parameters of the largest net that any client held. Time: of a run."
    )
    return assembled(f"{title}: costs", _labels(every), columns, note)


def aside_table(every: Sequence[Series], title: str, baseline: str | None = None) -> Table:
    """Return accuracy on what was kept aside of the training data, best first: to choose by.

    Raises:
        ConfigError: no variant has the name of the baseline.
    """
    ordered = sorted(every, key=lambda each: -each.over("validation").mean)
    chosen = named(every, baseline) if baseline else ordered[0]
    columns: dict[str, Sequence[Cell]] = {
        "seeds": [Cell(str(len(each.seeds))) for each in ordered],
        "kept aside": ranked([each.over("validation") for each in ordered]),
        f"above {chosen.label}": [
            Cell("" if each is chosen else _above(each, chosen, "validation")) for each in ordered
        ],
    }
    note = (
        "Accuracy [%] on training pictures that no device trained with, mean over domains and the "
        "last five rounds, mean (std) over seeds; differences are paired by seed, with Student's "
        "95 % interval."
    )
    return assembled(f"{title}: to choose by", _labels(ordered), columns, note, *left_out(every))


def _above(ours: Series, theirs: Series, column: str) -> str:
    found = difference(ours.by_seed(column), theirs.by_seed(column))
    return "–" if found is None else str(found)


def _count(value: float) -> str:
    return human(value).strip()


def paired_table(every: Sequence[Series], title: str, baseline: str | None = None) -> Table:
    """Return how far each variant is above a baseline: the named one, or that with the best mean.

    Raises:
        ConfigError: no variant has that name.
    """
    chosen = named(every, baseline) if baseline else max(every, key=lambda s: s.over("best").mean)
    others = [each for each in every if each is not chosen]

    def column(mark: str) -> list[Cell]:
        return [Cell(_above(each, chosen, mark)) for each in others]

    columns: dict[str, Sequence[Cell]] = {
        "seeds": [Cell(str(len(set(each.seeds) & set(chosen.seeds)))) for each in others],
        "best round": column("best"),
        "last five": column("last5"),
    }
    why = "the chosen baseline" if baseline else "the best mean, so look twice: it was picked"
    note = (
        f"Points of global accuracy above {chosen.label} ({why}): mean difference, paired by "
        "seed, with Student's 95 % interval over seeds."
    )
    return assembled(f"{title}: differences", _labels(others), columns, note)


def named(every: Sequence[Series], name: str) -> Series:
    """Return the variant with a label, or the only one of that method (and preset)."""
    names = [(each.label, each.method, each.rows[0]["preset"]) for each in every]
    return every[find_named(names, name)]


def find_named(names: Sequence[tuple[str, str, str]], wanted: str) -> int:
    """Return the place of the variant, given as label, method and preset, that is meant.

    Raises:
        ConfigError: it is none, or more than one.
    """
    found = [at for at, (label, _, _) in enumerate(names) if label == wanted]
    found = found or [
        at
        for at, (_, method, preset) in enumerate(names)
        if wanted in (method, f"{method}:{preset}")
    ]
    if len(found) != 1:
        labels = ", ".join(label for label, _, _ in names)
        raise ConfigError(f'--baseline "{wanted}" must name one variant; there are {labels}')
    return found[0]
