"""`dapperfl tune`: let a search choose hyper-parameters, on pictures that devices keep aside."""

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import border
from dapperfl.cli.options import ConfigFile, Settings

if TYPE_CHECKING:
    from dapperfl.lab.config import Config

Space = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=FORM", help="What to search; may be repeated."),
]


class Sampler(StrEnum):
    """What proposes the next trial."""

    AUTO = "auto"
    TPE = "tpe"
    GP = "gp"


def tune(
    config: ConfigFile = None,
    space: Space = None,
    settings: Settings = None,
    trials: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many, beside the config's own values.")
    ] = 30,
    sampler: Annotated[
        Sampler, typer.Option(help="gp is a Gaussian process; auto takes it for few trials.")
    ] = Sampler.AUTO,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="A trial is the mean over these; else the config's."),
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Trials at once, each in its process.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The study; by default a folder in runs/."),
    ] = None,
) -> None:
    """Search for better hyper-parameters, judged on validation data only.

    dapperfl tune
    dapperfl tune mine.toml --trials 50 --workers 2 --space 'train.lr=log(0.005,0.5)'
    dapperfl tune --space 'method.gamma=log(1e-4,1)' --space 'method.recovery={paper,gated}'

    FORM is LOW..HIGH, log(LOW,HIGH) or {A,B,...}; quote it for the shell.
    Without --space: DapperFL's alpha_0, alpha_min, epsilon and gamma.

    The score is the mean over domains of the accuracy on what devices keep aside
    (data.validation), in the mean of the last five rounds. Test sets are not read.

    The same command again goes on where it was stopped.
    """
    with border(interrupted="interrupted; the same command goes on from here"):
        from dapperfl.lab.compare.variants import parse_seeds
        from dapperfl.lab.resolve import resolve

        resolved = resolve(config, settings or [])
        method, data = resolved.method.name, resolved.data.benchmark
        usual = Path("runs") / re.sub(r"[^\w.-]", "-", f"tune-{method}-{data}")
        chosen = [] if seeds is None else parse_seeds(seeds)
        ask = _Ask(space or [], trials, sampler, chosen, workers)
        _tune(resolved, ask, out or usual)


@dataclass(frozen=True)
class _Ask:
    """What was typed, read."""

    space: list[str]
    trials: int
    sampler: Sampler
    seeds: list[int]
    workers: int


def _tune(config: "Config", ask: _Ask, out: Path) -> None:
    from rich.console import Console

    from dapperfl.lab.tuning import tune
    from dapperfl.lab.tuning.display import outcome, watched_search

    # Names and values are shown as they are, brackets included.
    console = Console(markup=False, emoji=False, highlight=False)
    rounds = config.rounds * max(1, len(ask.seeds))
    with watched_search(console, ask.trials, rounds) as show:
        result = tune(
            config,
            ask.space,
            out=out,
            trials=ask.trials,
            sampler=ask.sampler.value,
            seeds=ask.seeds,
            workers=ask.workers,
            show=show,
        )
    console.print(outcome(result))
    for name in ("trials.csv", "importance.png", "slices.png", "best.toml"):
        typer.echo(f"wrote {out / name}")
    typer.echo(f"to train with the best values: dapperfl run {shlex.quote(str(out / 'best.toml'))}")
