"""`dapperfl report`: show what runs came to, in one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from dapperfl.cli.border import border


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Run folders, or folders with runs below them."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="The report; by default report.html in the folder of all."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML file on all runs in the given folders."""
    with border():
        from dapperfl.lab.report import write_report

        typer.echo(f"report: {write_report(folders, out)}")
