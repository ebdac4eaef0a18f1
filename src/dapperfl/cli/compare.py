"""`dapperfl compare`: several methods with several seeds, and the table for the paper."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import border
from dapperfl.cli.options import ConfigFile, Settings

if TYPE_CHECKING:
    from dapperfl.lab.compare.collect import Failure
    from dapperfl.lab.compare.planned import Planned

Methods = Annotated[str, typer.Option(metavar="LIST", help="Variants, separated by commas.")]
Seeds = Annotated[str, typer.Option(metavar="0,1,2", help="Seeds, separated by commas.")]
Baseline = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Differences are from this variant, else from the best."),
]
Unseen = Annotated[
    bool, typer.Option("--unseen", help="Hold each domain out in turn, and test on that one.")
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", help="Runs at once, at most; by default one a core.")
]


def compare(
    *,
    config: ConfigFile = None,
    methods: Methods,
    seeds: Seeds = "0,1,2",
    settings: Settings = None,
    baseline: Baseline = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Runs and tables; by default a folder in runs/."),
    ] = None,
    workers: Workers = None,
    unseen: Unseen = False,
) -> None:
    """Run methods with several seeds side by side, and write the table people compare by.

    dapperfl compare --methods fedavg,dapperfl,dapperfl:paper
    dapperfl compare digits.toml --methods fedavg,moon --seeds 0,1 --baseline fedavg
    dapperfl compare --methods 'dapperfl,w/o DAR=dapperfl{method.gamma=0}'
    dapperfl compare --methods fedavg,dapperfl --unseen

    A variant is NAME, NAME:PRESET or LABEL=NAME:PRESET{KEY=VALUE,...}.
    NAME alone has what CONFIG says of this method, else its preset "default".

    The same command again goes on where it was stopped. A run that fails is
    named, the table is made of the others, and the exit code is 1.
    """
    with border(interrupted="interrupted; the same command goes on from here"):
        from dapperfl.lab.compare.planned import Base, plan_runs
        from dapperfl.lab.compare.tables import find_named
        from dapperfl.lab.compare.variants import parse_seeds, parse_variants

        shared = tuple(settings or ())
        base = Base(config.stem if config else _pictures(shared), config, shared)
        variants = parse_variants(methods)
        runs = plan_runs(base, variants, parse_seeds(seeds))
        if baseline:
            names = {run.label: run.config.method for run in runs}
            find_named([(label, m.name, m.preset) for label, m in names.items()], baseline)
        folder = out or base.folder(variants)
        if unseen:
            from dapperfl.lab.compare.unseen import without_each

            domains = _domains(runs)
            runs = plan_runs(base, without_each(variants, runs, domains), parse_seeds(seeds))
        failures = _compare(runs, folder, baseline, workers, unseen=unseen)
    end(failures)


def _pictures(settings: tuple[str, ...]) -> str:
    """Return what a table without a file is called: as its pictures, if not those of the demo."""
    from dapperfl.lab.config import Config
    from dapperfl.lab.resolve import resolve

    data = [text for text in settings if text.strip().startswith("data")]
    chosen = resolve(None, data).data.benchmark
    return "demo" if chosen == Config().data.benchmark else chosen


def _domains(runs: "list[Planned]") -> list[str]:
    """Return the domains of the runs' benchmark, each of which is to be held out."""
    from dapperfl.errors import ConfigError
    from dapperfl.lab.build import load_benchmark

    for data in {run.label: run.config.data for run in runs}.values():
        if data.held_out is not None:
            raise ConfigError("--unseen holds out every domain in turn; leave data.held_out unset")
        if data.allocation is not None:
            raise ConfigError(
                "--unseen holds out every domain in turn, and data.allocation gives devices to "
                f"{', '.join(data.allocation)}; leave it out"
            )
        if data.blind:
            raise ConfigError("--unseen looks at the test of a domain, data.blind = true at none")
    domains = list(load_benchmark(runs[0].config.data).domains)
    if len(domains) < 2:
        raise ConfigError(f"--unseen needs two domains or more; there is {', '.join(domains)}")
    _check_names(domains)
    return domains


def _check_names(domains: list[str]) -> None:
    """Refuse names that a setting or a table would take for something else."""
    from dapperfl.errors import ConfigError
    from dapperfl.lab.compare.unseen import KEY
    from dapperfl.lab.resolve import resolve

    for taken, why in (("none", "data.held_out takes for nothing"), ("mean", "a column has")):
        if taken in domains:
            raise ConfigError(f'--unseen: a domain has the name "{taken}", which {why}; rename it')
    for domain in domains:
        if resolve(None, [f"{KEY}={domain}"]).data.held_out != domain:  # quotes, or spaces around
            raise ConfigError(f"--unseen: {KEY} cannot be {domain!r}; rename this domain")


def _compare(
    runs: "list[Planned]", out: Path, baseline: str | None, workers: int | None, *, unseen: bool
) -> "list[Failure]":
    from rich.console import Console

    from dapperfl.lab.compare.collect import Collection, Files, Results, collect
    from dapperfl.lab.compare.formats import to_terminal
    from dapperfl.lab.compare.log import Log, origin
    from dapperfl.lab.compare.output import comparison, write_document
    from dapperfl.lab.compare.unseen import unseen_document

    name, summarise = ("unseen", unseen_document) if unseen else ("compare", comparison)
    console = Console(markup=False, emoji=False, highlight=False)
    files, results = Files(out, name), Results()
    how = Collection(console, Log.begin(files.log, command_line()), workers)
    failures = collect(runs, runs, files, results, how)
    rows, _ = results.of(runs)
    if not rows:
        return failures
    results.write(runs, files)
    document = summarise(rows, baseline=baseline, failures=failures)
    written = write_document(document, out / name, *origin(files.log))
    for table in document.tables:
        console.print(to_terminal(table))
    console.print(*document.remarks, sep="\n")
    tell_files([files.rows, *written])
    typer.echo(f"pictures: dapperfl report {shlex.quote(str(out))}")
    return failures


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["dapperfl", *sys.argv[1:]])


def tell_files(paths: Iterable[Path]) -> None:
    """Print where results are."""
    for path in paths:
        typer.echo(f"wrote {path}")


def end(failures: "list[Failure]") -> None:
    """Name the runs that failed, and end with code 1 if there are some."""
    for failure in failures:
        typer.echo(f"error: {failure.run.name} failed: {failure.error}", err=True)
    if failures:
        raise typer.Exit(1)
