"""Arguments and options that several commands share."""

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.errors import ConfigError

if TYPE_CHECKING:
    from dapperfl.lab.config import Config

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG.toml]", help="Settings; without it, those of the demo."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one setting of all that is run; repeatable."
    ),
]


def run_config(
    config: Path | None, settings: list[str] | None, out: Path | None, resume: bool
) -> "Config":
    """Return the config of a run; one that is continued has its own in its folder."""
    from dapperfl.lab.resolve import resolve, resolve_stored

    if resume and out is None:
        raise ConfigError("--resume needs the run folder to continue: --out DIR")
    if resume and out and config is None and (out / "config.toml").exists():
        return resolve_stored(out / "config.toml", settings or [])
    return resolve(config, settings or [])


def new_folder(config: "Config") -> Path:
    """Return where a run goes that was given no folder."""
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{config.method.name}-{config.data.benchmark}-seed{config.seed}-{moment}"
    return Path("runs") / re.sub(r"[^\w.-]", "-", name)
