"""Rows of one variant, one a seed, as numbers with a mean and a spread."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dapperfl.errors import CheckpointError
from dapperfl.lab.compare.rows import MARKS, Row, domains_of, number
from dapperfl.lab.continuing import FILES
from dapperfl.lab.groups import Spread, spread


@dataclass(frozen=True)
class Series:
    """The runs of one variant."""

    base: str
    label: str
    rows: tuple[Row, ...]  # by seed

    @property
    def method(self) -> str:
        """The method's name."""
        return self.rows[0]["method"]

    @property
    def seeds(self) -> list[int]:
        """The seeds there are."""
        return [int(row["seed"]) for row in self.rows]

    @cached_property
    def domains(self) -> list[str]:
        """The domains that its runs were tested on; a seed may lack one that others have."""
        return list(dict.fromkeys(domain for row in self.rows for domain in domains_of(row)))

    def by_seed(self, column: str) -> dict[int, float]:
        """Return a column's number of each seed.

        Raises:
            CheckpointError: a run has none.
        """
        return {int(row["seed"]): number(row, column) for row in self.rows}

    def over(self, column: str) -> Spread:
        """Return mean and spread of a column over seeds."""
        return spread(self.by_seed(column).values())

    def of_domain(self, domain: str, mark: str) -> Spread | None:
        """Return mean and spread of a domain's accuracy over the seeds that have the domain."""
        own = [row for row in self.rows if domain in domains_of(row)]
        return spread(number(row, f"{domain}_{mark}") for row in own) if own else None

    def worst(self) -> Spread:
        """Return the worst domain's mean of the last five rounds, taken run by run."""
        return spread(min(each) for each in self._domain_values())

    def range(self) -> Spread:
        """Return how far the best domain is above the worst, taken run by run."""
        return spread(max(each) - min(each) for each in self._domain_values())

    def _domain_values(self) -> Iterable[list[float]]:
        last = MARKS[-1]
        if not self.domains:
            raise CheckpointError(f"{self.base}: {self.label} has no accuracy of any domain")
        return ([number(row, f"{each}_{last}") for each in domains_of(row)] for row in self.rows)

    def setting(self, key: str) -> str | None:
        """Return a setting of the variant, as it was typed."""
        for text in self.rows[0]["settings"].split("; "):
            name, equals, value = text.partition("=")
            if equals and name.strip() == key:
                return value.strip()
        return None


def series_of(rows: Iterable[Row]) -> list[Series]:
    """Put the rows of a variant together, in the order in which variants first come."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["base"], row["label"]), []).append(row)
    return [
        Series(base, label, tuple(sorted(own, key=lambda row: int(row["seed"]))))
        for (base, label), own in found.items()
    ]


def missing_seeds(every: Sequence[Series]) -> list[str]:
    """Say which variants have fewer seeds than the others."""
    seeds = sorted({seed for each in every for seed in each.seeds})
    return [
        f"{each.base}: {each.label} has seed {', '.join(map(str, each.seeds))} only; "
        f"others have {', '.join(map(str, seeds))}."
        for each in every
        if each.seeds != seeds
    ]


def missing_domains(every: Sequence[Series]) -> list[str]:
    """Say which runs were judged on fewer domains than others of their variant."""
    return [
        f"{each.base}: {each.label}, seed {row['seed']} has no numbers of {', '.join(lost)} (no "
        "picture of it was kept aside, or tested); its means are over the other domains."
        for each in every
        for row in each.rows
        if (lost := [domain for domain in each.domains if domain not in domains_of(row)])
    ]


def mixed_pictures(every: Iterable[Series]) -> list[str]:
    """Say which runs were made before, and which after, the files of their pictures changed."""
    found: dict[tuple[str, ...], dict[str, list[str]]] = {}  # by place of the files, then by mark
    for each in every:
        place = each.base, each.rows[0]["benchmark"], each.setting("data.root") or ""
        for mark, seeds in _by_files(each).items():
            found.setdefault(place, {}).setdefault(mark, []).append(f"{each.label}, seed {seeds}")
    return [
        f"{base}: pictures have come, gone or changed between the runs {' | '.join(sides)}; "
        "another --out trains all on the same."
        for (base, *_), marks in found.items()
        if len(sides := ["; ".join(runs) for runs in marks.values()]) > 1
    ]


def _by_files(each: Series) -> dict[str, str]:
    """Return the seeds that were run on each state of the files, where rows know it."""
    found: dict[str, list[str]] = {}
    for row in each.rows:
        if row.get(FILES):
            found.setdefault(row[FILES], []).append(row["seed"])
    return {mark: ", ".join(seeds) for mark, seeds in found.items()}


def left_out(every: Iterable[Series]) -> list[str]:
    """Say whose numbers were made without some of the devices, in a part of the rounds."""
    found = [words for each in every if (words := _left_out(each))]
    if not found:
        return []
    where = "the rounds.jsonl of a run says which, and why"
    return [f"Devices were left out of rounds: {'; '.join(found)} ({where})."]


def _left_out(each: Series) -> str:
    """Count over the seeds that had some; older rows do not know of how many."""
    rows = [row for row in each.rows if float(row.get("left_out") or 0)]
    if not rows:
        return ""
    seeds = ", ".join(row["seed"] for row in rows)
    lost = sum(int(number(row, "left_out")) for row in rows)
    known = all(row.get("client_rounds") for row in rows)
    total = sum(int(number(row, "client_rounds")) for row in rows) if known else None
    of_all = "" if total is None else f" of {total}"
    return f"{each.label}, seed {seeds}: {lost}{of_all} client rounds"
