"""From the rows of a plan to its tables, figures and files."""

from collections.abc import Sequence
from pathlib import Path

from dapperfl.errors import CheckpointError
from dapperfl.lab.compare.collect import Failure, rounds_beside
from dapperfl.lab.compare.log import origin
from dapperfl.lab.compare.output import losses
from dapperfl.lab.compare.rows import Row, read_rows
from dapperfl.lab.reproduce import ablation, accuracy, curves, equal, footprint, search
from dapperfl.lab.reproduce.plans import EQUAL, PLANS, RATES, Plan
from dapperfl.lab.reproduce.product import Product, write_product
from dapperfl.lab.reproduce.sweeps import Render, render_sweep

SEARCH = "epsilon-search"
_RENDER: dict[str, Render] = {
    "table-digits": accuracy.render,
    "table-office": accuracy.render,
    "footprint": footprint.render,
    "ablation": ablation.render,
    SEARCH: search.render,
    "curves": curves.render,
    RATES: equal.render_rates,
    EQUAL: equal.render,
}


def render(plan: Plan, rows: Sequence[Row], rounds: Sequence[Row]) -> Product:
    """Return the tables and figures of a plan."""
    chosen = _RENDER.get(plan.name) or render_sweep(plan.field or "")
    return chosen(plan.about, rows, rounds)


def write_from_csv(
    plan: Plan, path: Path, out: Path | None = None, failures: Sequence[Failure] = ()
) -> tuple[Product, list[Path]]:
    """Make tables and figures from a CSV file, without running anything.

    Args:
        plan: What the rows are of.
        path: One row a run; the file of rounds is looked for beside it.
        out: The folder of the files, by default that of the CSV file.
        failures: Runs that the tables lack.

    Raises:
        CheckpointError: a file is missing, damaged, or of another table.
    """
    rows = read_rows(path)
    if not rows:
        raise CheckpointError(f"{path} has no rows, so there is nothing to make a table of")
    _check_rows(plan, rows, path)
    beside = rounds_beside(path)
    if plan.name == "curves" and not beside.exists():
        raise CheckpointError(f"curves are drawn from {beside}, which is missing")
    rounds = read_rows(beside) if beside.exists() else []
    product = render(plan, rows, rounds)
    stem = (out or path.parent) / path.stem
    more = [*origin(path.with_suffix(".json")), *losses(failures)]
    return product, write_product(product, stem, *(f"{line}\n" for line in more))


def _check_rows(plan: Plan, rows: Sequence[Row], path: Path) -> None:
    """Refuse the rows of another table: they would stand under a wrong title, or break it."""
    whole = PLANS[plan.name]  # whatever part of it was asked for
    ends = tuple(point.label for point in whole.points)
    judged = ("validation",) if plan.name in (SEARCH, RATES) else ()
    needed = ("protocol", "benchmark", *judged)
    for row in rows:
        fits = row["base"] in whole.bases and row["label"].endswith(ends)
        if not fits or not all(row.get(name) for name in needed):
            raise CheckpointError(
                f"{path} has {row['base']}: {row['label']}, which is no row of {plan.name}"
            )
