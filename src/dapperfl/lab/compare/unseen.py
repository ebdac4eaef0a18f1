"""Leave one domain out: how good is a model on a domain that no device has?

Every variant is run once for each domain, which is kept from all devices. What counts is the
accuracy on that domain, and the mean over all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dapperfl.lab.compare.collect import Failure
from dapperfl.lab.compare.output import Document, remarks_on
from dapperfl.lab.compare.paired import difference
from dapperfl.lab.compare.planned import Planned
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import Series, left_out, series_of
from dapperfl.lab.compare.tables import Cell, Table, assembled, find_named, ranked
from dapperfl.lab.compare.variants import Variant
from dapperfl.lab.groups import Spread, spread

KEY = "data.held_out"


def without_each(
    variants: Sequence[Variant], planned: Sequence[Planned], domains: Iterable[str]
) -> list[Variant]:
    """Return every variant without each of the domains, under the name that it has in a plan."""
    labels = list(dict.fromkeys(run.label for run in planned))
    return [
        replace(
            variant,
            settings=(*variant.settings, f"{KEY}={domain}"),
            label=f"{label} without {domain}",
        )
        for variant, label in zip(variants, labels, strict=True)
        for domain in domains
    ]


@dataclass(frozen=True)
class Unseen:
    """A variant on all domains that it has not seen, each in runs of its own."""

    label: str
    method: str
    preset: str
    by_domain: Mapping[str, Mapping[int, float]]  # last five rounds, by seed

    def mean(self, domains: Iterable[str]) -> dict[int, float]:
        """Return the mean over these domains of each seed that has them all."""
        found = [self.by_domain.get(domain, {}) for domain in domains]
        seeds = sorted(set.intersection(*(set(each) for each in found)))
        return {seed: sum(each[seed] for each in found) / len(found) for seed in seeds}


def unseen_document(
    rows: Sequence[Row], *, baseline: str | None = None, failures: Sequence[Failure] = ()
) -> Document:
    """Return the table of accuracies on unseen domains, and what it lacks."""
    every = series_of(rows)
    base = every[0].base
    table = unseen_table(every, base, baseline)
    return Document(f"Domains that no device has, {base}", (table,), remarks_on(every, failures))


def unseen_table(every: Sequence[Series], title: str, baseline: str | None = None) -> Table:
    """Return accuracy on each domain held out, their mean, and how far it is above a baseline's.

    Raises:
        ConfigError: no variant has the name of the baseline.
    """
    domains = list(dict.fromkeys(_held_out(each) for each in every))
    found = _gathered(every)
    means = [each.mean(domains) for each in found]
    names = [(each.label, each.method, each.preset) for each in found]
    chosen = find_named(names, baseline) if baseline else _best(means)
    columns: dict[str, Sequence[Cell]] = {
        domain: ranked([_over(each.by_domain.get(domain, {})) for each in found])
        for domain in domains
    }
    columns["mean"] = ranked([_over(each) for each in means])
    columns[f"above {found[chosen].label}"] = [
        Cell("" if place == chosen else str(difference(each, means[chosen]) or "–"))
        for place, each in enumerate(means)
    ]
    note = (
        "Accuracy [%] on the domain that no device has, last five rounds, mean (std) over seeds; "
        "differences of the mean over domains are paired by seed, with Student's 95 % interval."
    )
    labels = [each.label for each in found]
    return assembled(f"{title}: unseen domains", labels, columns, note, *left_out(every))


def _held_out(each: Series) -> str:
    """Return the domain that its settings name, whatever letters it is made of."""
    settings = f"; {each.rows[0]['settings']}; "
    named = [domain for domain in each.domains if f"; {KEY}={domain}; " in settings]
    return max(named, key=len, default="")


def _gathered(every: Sequence[Series]) -> list[Unseen]:
    """Put the runs of a variant without each domain together, in the order they come."""
    found: dict[str, dict[str, Series]] = {}  # by variant and domain
    for each in every:
        domain = _held_out(each)
        found.setdefault(each.label.removesuffix(f" without {domain}"), {})[domain] = each
    return [_unseen(label, own) for label, own in found.items()]


def _unseen(label: str, own: Mapping[str, Series]) -> Unseen:
    some = next(iter(own.values()))
    accuracies = {domain: each.by_seed(f"{domain}_last5") for domain, each in own.items()}
    return Unseen(label, some.method, some.rows[0]["preset"], accuracies)


def _over(values: Mapping[int, float]) -> Spread | None:
    return spread(values.values()) if values else None


def _best(means: Sequence[dict[int, float]]) -> int:
    """Return the place of the best mean; the first one where nothing is complete."""
    return max(
        range(len(means)),
        key=lambda place: sum(means[place].values()) / len(means[place]) if means[place] else 0.0,
    )
