"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

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
