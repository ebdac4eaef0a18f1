"""The command line: parses arguments, shows results, and turns errors into one line and a code.

Exit codes: 0 done, 1 the run failed, 2 the configuration is wrong, 130 interrupted. What is heavy
to import is imported inside the commands, so that `--help` answers at once.
"""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl import __version__, environment
from dapperfl.cli import compare, data, deploy, join, levels, report, reproduce, tune
from dapperfl.cli.border import border, show_anything, stop
from dapperfl.cli.options import ConfigFile, Settings, new_folder, run_config

if TYPE_CHECKING:
    from dapperfl.lab.config import Config

app = typer.Typer(
    help="Federated learning on devices that differ in power and in data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")


class Kind(StrEnum):
    """What `dapperfl list` can list."""

    METHODS = "methods"
    NETS = "nets"
    BENCHMARKS = "benchmarks"


def main() -> None:
    """Run the command line."""
    environment.prepare()  # before the commands import torch
    show_anything()
    app(prog_name="dapperfl")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dapperfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: ConfigFile = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run folder; by default a new one in runs/."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, if there is one.")
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Tell every round to tensorboard or package.module:Class, too."
        ),
    ] = None,
) -> None:
    """Train, and write everything about it into a run folder."""
    with border():
        resolved = run_config(config, settings, out, resume)
        _run(resolved, out or new_folder(resolved), resume, track or [])


def _run(config: "Config", out: Path, resume: bool, track: list[str]) -> None:
    from rich.console import Console

    from dapperfl.lab.continuing import finished_summary, tell_changed
    from dapperfl.lab.display import header, results, watched
    from dapperfl.lab.experiment import opened
    from dapperfl.lab.tracking import load_tracker, tracked

    trackers = [load_tracker(name) for name in track]
    # Names and paths are shown as they are, brackets included.
    console = Console(markup=False, emoji=False, highlight=False)
    summary = finished_summary(config, out) if resume else None
    if summary is not None:
        tell_changed(config, out)
        console.print(results(summary))
        typer.echo(f"{out} is finished; for more rounds: --resume --set rounds={config.rounds * 2}")
        return
    try:
        with opened(config, out, resume=resume) as experiment:
            console.print(header(experiment))
            with watched(console, experiment) as show, tracked(trackers, experiment) as tell:
                for line in experiment.rounds():
                    show(line)
                    tell(line)
            summary = experiment.finish()
    except KeyboardInterrupt:
        if not (out / "config.toml").exists():
            raise
        folder = shlex.quote(str(out))
        stop(f"interrupted; continue with: dapperfl run --out {folder} --resume", 130)
    console.print(results(summary))
    typer.echo(f"run folder: {out}")
    typer.echo(f"in Python:  net = dapperfl.load_run({str(out)!r})")
    typer.echo(f"as a page:  dapperfl report {shlex.quote(str(out))}")


@app.command("list")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the fields of each method.")
    ] = False,
) -> None:
    """List the methods, nets or benchmarks there are."""
    with border():
        from dapperfl.lab.reference import describe, names

        for name in names(kind.value):
            typer.echo(name)
            if verbose and kind is Kind.METHODS:
                for line in describe(name):
                    typer.echo(f"  {line}")


@app.command()
def show_config(config: ConfigFile = None, settings: Settings = None) -> None:
    """Print the complete config that `run` would use, as TOML."""
    with border():
        from dapperfl.lab.config import to_toml
        from dapperfl.lab.resolve import resolve

        typer.echo(to_toml(resolve(config, settings or [])), nl=False)


app.command()(levels.levels)
app.command()(report.report)
app.command()(compare.compare)
app.command()(tune.tune)
app.command()(reproduce.reproduce)
app.command()(deploy.certs)
app.command()(deploy.serve)
app.command()(join.join)
app.command()(deploy.local_fleet)
