"""`dapperfl data`: get, prepare, list and look at the pictures of the benchmarks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import border

if TYPE_CHECKING:
    from dapperfl.data.prepare import Progress, Report

app = typer.Typer(help="Get, prepare, list and look at data.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The benchmark, such as digits.")]
Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of prepared data; by default DAPPERFL_DATA or ~/.cache/dapperfl.",
    ),
]
_AGAIN = "interrupted; what is finished stays, run the same command again to go on"


@app.command()
def prepare(
    name: Name,
    source: Annotated[
        Path, typer.Option("--from", metavar="DIR", help="The folder with the official files.")
    ],
    root: Root = None,
) -> None:
    """Turn official files into the format that runs read."""
    with border(interrupted=_AGAIN):
        from dapperfl.data.prepare import prepare

        with _bar() as progress:
            report = prepare(name, source, root=root, progress=progress)
        _show(report)


@app.command()
def fetch(name: Name, root: Root = None) -> None:
    """Download the official files, as far as they are public, and prepare them."""
    with border(interrupted=_AGAIN):
        from dapperfl.data.fetch import fetch

        with _bar() as progress:
            report = fetch(name, root=root, progress=progress)
        _show(report)


@app.command("list")
def list_(root: Root = None) -> None:
    """Show what is there and what is missing, the licences, and how to cite."""
    with border():
        from dapperfl.data.catalogue import CATALOGUE, TERMS
        from dapperfl.data.inventory import inventory
        from dapperfl.data.prepared import data_root

        typer.echo(f"root: {data_root(root)}")
        items = list(inventory(root))
        for benchmark, known in CATALOGUE.items():
            typer.echo(f"\n{benchmark}")
            for item in (item for item in items if item.benchmark == benchmark):
                size = f"{item.images:>7,} images {item.bytes:>13,} bytes  {item.path}"
                typer.echo(f"  {item.domain:8} {item.split:6} {item.trouble or size}")
            for domain, origin in known.items():
                typer.echo(f"  {domain}: {origin.title}; licence: {origin.licence}")
                typer.echo(f"    cite: {origin.citation}")
                how = "dapperfl data fetch" if origin.downloads else origin.by_hand
                typer.echo(f"    from: {origin.homepage}; {how}")
        typer.echo("\nminidigits\n  drawn on this machine when it is first used; nothing to get")
        typer.echo(f"\nLicences: {TERMS}.")


@app.command()
def show(
    name: Name,
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="The page; by default NAME.png.")
    ] = None,
) -> None:
    """Draw a contact sheet: some pictures of every class, domain by domain."""
    with border():
        from dapperfl.data import benchmarks, contact_sheet

        page = out or Path(f"{name}.png")
        contact_sheet.draw(benchmarks.load(name, root), page)
        typer.echo(f"contact sheet: {page}")


@contextmanager
def _bar() -> Iterator["Progress"]:
    """Show a bar for each thing that is worked on; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    with Bars(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

        yield progress


def _show(report: "Report") -> None:
    """Print what became of each split; end with code 1 if the benchmark is not complete."""
    for outcome in report.outcomes:
        count = f"{outcome.images:>8,} images" if outcome.images else ""
        typer.echo(f"{outcome.domain:8} {outcome.split:6} {outcome.state:8}{count}".rstrip())
        if outcome.remark:
            typer.echo(f"    {outcome.remark}")
    typer.echo(f"prepared data: {report.folder}")
    for trouble in report.troubles:
        typer.echo(f"not downloaded: {trouble}", err=True)
    if report.advice:
        again = f"dapperfl data prepare {report.folder.name} --from DIR"
        typer.echo(f"how to get what is missing (put it into any DIR, then {again}):", err=True)
    for line in report.advice:
        typer.echo(f"    {line}", err=True)
    if not report.complete:
        typer.echo("error: the benchmark is not complete, see above", err=True)
        raise typer.Exit(1)
