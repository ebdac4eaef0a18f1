"""The files of a comparison beside its CSV: Markdown and LaTeX."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dapperfl.lab.compare.collect import Failure
from dapperfl.lab.compare.formats import to_latex, to_markdown
from dapperfl.lab.compare.rows import Row
from dapperfl.lab.compare.series import (
    Series,
    missing_domains,
    missing_seeds,
    mixed_pictures,
    series_of,
)
from dapperfl.lab.compare.tables import (
    Table,
    accuracy_table,
    aside_table,
    beyond_table,
    cost_table,
    paired_table,
)
from dapperfl.lab.folder import write_atomically


@dataclass(frozen=True)
class Document:
    """Tables with a title above them and remarks below them."""

    title: str
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()


def comparison(
    rows: Sequence[Row], *, baseline: str | None = None, failures: Sequence[Failure] = ()
) -> Document:
    """Return the tables of a comparison, and what they lack."""
    every = series_of(rows)
    title = every[0].base
    if any(row.get("blind") for row in rows):  # accuracies are not of test pictures
        aside = series_of([row for row in rows if row.get("validation")])
        tables = [aside_table(aside, title, baseline), cost_table(every, title)]
    else:
        tables = standard_tables(every, title, baseline)
        if all(row.get("validation") for row in rows):
            tables.append(aside_table(every, title, baseline))
    return Document(f"Comparison on {title}", tuple(tables), remarks_on(every, failures))


def remarks_on(every: Sequence[Series], failures: Iterable[Failure]) -> tuple[str, ...]:
    """Say which seeds there are, and what is missing."""
    seeds = sorted({seed for each in every for seed in each.seeds})
    missing = [*missing_seeds(every), *missing_domains(every), *mixed_pictures(every)]
    return f"Seeds {', '.join(map(str, seeds))}.", *missing, *losses(failures)


def standard_tables(
    every: Sequence[Series], title: str, baseline: str | None = None
) -> list[Table]:
    """Return accuracy as in the paper, what it does not show, costs and differences."""
    tables = [table(every, title) for table in (accuracy_table, beyond_table, cost_table)]
    return [*tables, paired_table(every, title, baseline)] if len(every) > 1 else tables


def losses(failures: Iterable[Failure]) -> list[str]:
    """Say which runs the tables are made without."""
    return [f"Failed, and in no table: {each.run.name}: {each.error}" for each in failures]


def write_document(document: Document, stem: Path, *more: str) -> list[Path]:
    """Write a document as STEM.md and STEM.tex; `more` follows the tables of the page."""
    remarks = "".join(f"\n- {remark}" for remark in document.remarks)
    parts = [f"# {document.title}\n", *map(to_markdown, document.tables), *more]
    page = stem.with_name(f"{stem.name}.md")
    write_atomically(page, ("\n".join(parts) + (f"{remarks}\n" if remarks else "")).encode())
    paper = stem.with_name(f"{stem.name}.tex")
    head = f"% {document.title}; needs \\usepackage{{booktabs}}\n"
    tables = "\n".join(map(to_latex, document.tables))
    write_atomically(paper, f"{head}{tables}".encode())
    return [page, paper]
