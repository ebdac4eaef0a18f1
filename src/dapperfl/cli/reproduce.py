"""`dapperfl reproduce`: the paper's tables and figures, by name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import border
from dapperfl.cli.compare import Workers, command_line, end, tell_files
from dapperfl.cli.options import Settings

if TYPE_CHECKING:
    from dapperfl.lab.compare.collect import Failure
    from dapperfl.lab.reproduce.plans import Plan
    from dapperfl.lab.reproduce.work import Wish

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="What to reproduce; see --list.")
]
Names = Annotated[bool, typer.Option("--list", help="List the names and end.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Minutes on two cores: embedded data, narrow nets.")
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="The real data: data.root.")]
Protocol = Annotated[
    str | None, typer.Option(metavar="NAME", help="Another data.protocol, such as fair.")
]
Methods = Annotated[
    str | None, typer.Option(metavar="LIST", help="Other variants than the plan's.")
]
Seeds = Annotated[str | None, typer.Option(metavar="0,1", help="Other seeds than the plan's.")]
Only = Annotated[str | None, typer.Option(metavar="digits|office", help="One benchmark of two.")]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="At most so many new runs this time.")
]
Trials = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="epsilon-search: how many values.")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Runs and results; by default runs/reproduce."),
]
KeepWeights = Annotated[
    bool, typer.Option("--keep-weights", help="Keep the weights of finished runs.")
]
FromCsv = Annotated[
    Path | None, typer.Option(metavar="FILE.csv", help="Make table and figure of it, run nothing.")
]


def reproduce(
    name: Name = None,
    *,
    names: Names = False,
    quick: Quick = False,
    data: Data = None,
    protocol: Protocol = None,
    methods: Methods = None,
    seeds: Seeds = None,
    only: Only = None,
    limit: Limit = None,
    trials: Trials = None,
    settings: Settings = None,
    out: Out = None,
    workers: Workers = None,
    keep_weights: KeepWeights = False,
    from_csv: FromCsv = None,
) -> None:
    """Make a table or figure of the paper, with its numbers beside ours.

    dapperfl reproduce --list
    dapperfl reproduce table-digits --quick
    dapperfl reproduce table-digits --data DIR --protocol fair
    dapperfl reproduce ablation --data DIR --only office --seeds 0 --limit 4
    dapperfl reproduce table-digits --from-csv results/table-digits.csv

    It can be run in pieces: killed and started again, or with other --methods,
    --seeds or --only each time. What is in NAME.csv or in a run folder of --out
    is not run again; all names share their runs.
    """
    failures: list[Failure] = []
    with border(interrupted="interrupted; the same command goes on from here"):
        from dapperfl.lab.reproduce.plans import PLANS, find_plan

        if names or name is None:
            for plan in PLANS.values():
                typer.echo(f"{plan.name:15} {plan.about}")
            return
        plan = find_plan(name, methods=methods, only=only)
        if from_csv is not None:
            unused = {
                "--methods": methods, "--seeds": seeds, "--only": only, "--protocol": protocol,
                "--quick": quick, "--data": data, "--set": settings, "--limit": limit,
                "--trials": trials, "--workers": workers, "--keep-weights": keep_weights,
            }  # fmt: skip
            _refuse_unused(unused, "--from-csv runs nothing, and shows all rows of the file")
            _write(plan, from_csv, out)
            return
        if trials is not None and plan.name != "epsilon-search":
            _refuse_unused({"--trials": trials}, f"{plan.name} is no search")
        changed = [f"data.protocol={protocol}"] if protocol else []
        changed += [f"data.root={data}"] if data else []
        wish = _wish(plan, seeds, [*changed, *(settings or ())], out, quick)
        wish = replace(wish, limit=limit, trials=trials, ending=f"-{protocol}" if protocol else "")
        failures = _do(wish, workers, keep_weights)
    end(failures)


def _refuse_unused(options: Mapping[str, object], why: str) -> None:
    """Refuse options that would be ignored."""
    from dapperfl.errors import ConfigError

    for option, given in options.items():
        if given:
            raise ConfigError(f"{why}: {option} would be ignored; leave it out")


def _wish(
    plan: "Plan", seeds: str | None, settings: list[str], out: Path | None, quick: bool
) -> "Wish":
    from dapperfl.lab.compare.variants import parse_seeds
    from dapperfl.lab.reproduce.plans import QUICK_SEEDS
    from dapperfl.lab.reproduce.work import Wish

    usual = plan.seeds[:QUICK_SEEDS] if quick else plan.seeds
    chosen = tuple(parse_seeds(seeds)) if seeds is not None else usual
    folder = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    return Wish(plan, folder, chosen, tuple(settings), quick)


def _do(wish: "Wish", workers: int | None, keep_weights: bool) -> "list[Failure]":
    from rich.console import Console

    from dapperfl.lab.compare.collect import Collection
    from dapperfl.lab.compare.log import Log
    from dapperfl.lab.reproduce.work import fulfil

    console = Console(markup=False, emoji=False, highlight=False)
    log = Log.begin(wish.files.log, command_line())
    failures = fulfil(wish, Collection(console, log, workers, keep_weights))
    if wish.files.rows.exists():
        _write(wish.plan, wish.files.rows, None, failures)
    else:
        typer.echo("no run is finished yet, so there is no table")
    return failures


def _write(
    plan: "Plan", rows: Path, out: Path | None, failures: "list[Failure] | None" = None
) -> None:
    from rich.console import Console

    from dapperfl.lab.compare.formats import to_terminal
    from dapperfl.lab.reproduce.render import write_from_csv

    console = Console(markup=False, emoji=False, highlight=False)
    product, written = write_from_csv(plan, rows, out, failures or [])
    for table in product.document.tables:
        console.print(to_terminal(table))
    for remark in product.document.remarks:
        console.print(f"- {remark}")
    tell_files([rows, *written])
