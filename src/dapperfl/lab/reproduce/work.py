"""Have the runs of a plan done, in as many pieces as one likes, killed and started again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.collect import Collection, Failure, Files, Results, collect
from dapperfl.lab.compare.log import Log
from dapperfl.lab.compare.planned import Base, Planned, plan_runs
from dapperfl.lab.compare.rows import Row, read_rows
from dapperfl.lab.compare.variants import Variant
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.reproduce.equal import best_rates
from dapperfl.lab.reproduce.plans import (
    EQUAL,
    PLANS,
    QUICK_TRIALS,
    RATES,
    TO_CHOOSE_BY,
    TRIALS,
    Plan,
    base_of,
)
from dapperfl.lab.reproduce.search import Scores, search

SEARCH, CURVES = "epsilon-search", "curves"


@dataclass(frozen=True)
class Wish:
    """What somebody wants of a plan."""

    plan: Plan
    out: Path
    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    quick: bool = False
    ending: str = ""  # of the files' names, such as "-fair"
    limit: int | None = None  # new runs in this call
    trials: int | None = None  # of a search

    @property
    def files(self) -> Files:
        """Where its results go."""
        return Files(self.out, f"{self.plan.name}{self.ending}")

    def base(self, name: str) -> Base:
        """Return what its runs on a benchmark share."""
        return base_of(self.plan, name, self.overrides, quick=self.quick)


def fulfil(wish: Wish, how: Collection) -> list[Failure]:
    """Do the runs that are missing, write the files of rows, and return what failed.

    Rows of earlier pieces, with other methods or seeds, stay part of the table.

    Raises:
        ConfigError: the folder has rows of this plan with other settings.
    """
    work = _Work(wish, how, _known(wish), _earlier(wish))
    if wish.plan.name == SEARCH:
        trials = wish.trials or (QUICK_TRIALS if wish.quick else TRIALS)
        for name in wish.plan.bases:
            for method in wish.plan.methods:
                search(wish.base(name), method, seeds=wish.seeds, trials=trials, do=work.score)
    elif wish.plan.name == EQUAL:
        return _at_best_rates(wish, how, work)
    else:
        variants = wish.plan.variants()
        work.do([r for b in wish.plan.bases for r in plan_runs(wish.base(b), variants, wish.seeds)])
    return work.failures


def _at_best_rates(wish: Wish, how: Collection, work: "_Work") -> list[Failure]:
    """Let the rates be found, as far as they are not yet, then do the runs at the best ones."""
    plan = replace(PLANS[RATES], methods=wish.plan.methods, bases=wish.plan.bases)
    first = replace(wish, plan=plan, seeds=wish.seeds[:TO_CHOOSE_BY])
    log = Log.begin(first.files.log, how.log.entry["command"])
    failures = fulfil(first, replace(how, log=log))
    rows = read_rows(first.files.rows) if first.files.rows.exists() else []
    for name in wish.plan.bases:
        found = best_rates(plan, [row for row in rows if row["base"] == name], first.seeds)
        work.do(plan_runs(wish.base(name), found, wish.seeds))
    return failures + work.failures


def _known(wish: Wish) -> Results:
    """Return what the folder's files say of any run, whichever plan it was for."""
    results = Results()
    for path in sorted(wish.out.glob("*.csv")):
        if path.stem.startswith(tuple(PLANS)) and not path.stem.endswith("-rounds"):
            results.add_files(path)
    if wish.plan.name == CURVES:
        for key, row in list(results.rows.items()):
            if len(results.rounds.get(key, ())) != int(row["rounds"]):
                del results.rows[key]
    return results


def _earlier(wish: Wish) -> list[Planned]:
    """Return the runs of earlier pieces, and make sure that they belong to the same table."""
    if not wish.files.rows.exists():
        return []
    runs = []
    for row in read_rows(wish.files.rows):
        [run] = plan_runs(wish.base(row["base"]), [_variant(row)], [int(row["seed"])])
        if run.id != row["id"]:
            raise ConfigError(
                f"{wish.files.rows} has {run.name} with other settings, so that one table would "
                "mix both; choose another --out, or move the file away"
            )
        runs.append(run)
    return runs


def _variant(row: Row) -> Variant:
    settings = tuple(text for text in row["settings"].split("; ") if text)
    return Variant(row["method"], row["preset"], settings, row["label"])


class _Work:
    """The runs of a table so far, and what is known of them."""

    def __init__(
        self, wish: Wish, how: Collection, results: Results, earlier: Iterable[Planned]
    ) -> None:
        self.wish, self.how, self.results = wish, how, results
        self.failures: list[Failure] = []
        self._plan = PLANS[wish.plan.name]  # with all its methods, whatever this piece is of
        self._named = [each.label for each in self._plan.variants()]
        self._order = {label: place for place, label in enumerate(self._named)}
        self._runs: dict[tuple[str, str, int], Planned] = {}
        self._left = wish.limit
        self._add(earlier)

    def _add(self, runs: Iterable[Planned]) -> None:
        """Take runs into the table, each once: the plan's own name for it is the better one."""
        for run in runs:
            place = (run.base, *run.key)
            if place not in self._runs or run.label in self._named:
                self._runs[place] = run
            self._order.setdefault(run.label, len(self._order))

    def table(self) -> list[Planned]:
        """Return all runs, in the order of the plan; others follow in the order they came."""
        return sorted(
            self._runs.values(),
            key=lambda run: (
                self._plan.bases.index(run.base),
                self._order[run.label],
                run.config.seed,
            ),
        )

    def do(self, runs: Sequence[Planned]) -> bool:
        """Do the runs that are missing, as far as the limit allows; say whether it did."""
        self._add(runs)
        files = self.wish.files
        missing = [run for run in runs if run.key not in self.results.rows]
        new = [run for run in missing if not RunFolder(run.folder(files.out)).summary.exists()]
        left_out = new[self._left :] if self._left is not None else []
        if self._left is not None:
            self._left = max(0, self._left - len(new))
        wanted = [run for run in missing if run not in left_out]
        self.failures += collect(wanted, self.table(), files, self.results, self.how)
        if any(run.key in self.results.rows for run in self._runs.values()):
            self.results.write(self.table(), files)
        return not left_out

    def score(self, runs: Sequence[Planned]) -> Scores | None:
        """Do the runs of some trials, and return how they did on what devices keep aside."""
        if not self.do(runs):
            return None
        rows = self.results.rows
        return {run.key: float(rows[run.key]["validation"]) for run in runs if run.key in rows}
