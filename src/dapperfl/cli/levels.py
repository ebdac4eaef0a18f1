"""`dapperfl levels`: what each level costs, and which one suits this machine."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import border
from dapperfl.cli.options import ConfigFile, Settings
from dapperfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dapperfl.lab.config import Config
    from dapperfl.lab.rehearsal import Rehearsal

_PICTURES = 500  # of a device of which nobody knows how many it will bring
_ENDLESS = 10_000  # columns, to see how many a table wants


def levels(
    config: ConfigFile = None,
    *,
    settings: Settings = None,
    pictures: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="A device's pictures; by default the most that one is dealt."
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="How long it may train; by default deploy.deadline."
        ),
    ] = None,
) -> None:
    """Say what each level holds and sends, and how long this machine trains a round of it.

    dapperfl levels run.toml --pictures 400 --within 60

    Run it on a device to choose the --rho it joins with. It trains a few short rounds
    of every level in fleet.rhos on made-up pictures, and makes no run folder.
    """
    with border():
        from dapperfl.lab.display import rehearsed
        from dapperfl.lab.rehearsal import rehearse
        from dapperfl.lab.resolve import resolve
        from dapperfl.lab.world import known_world

        if within is not None and not math.isfinite(within):  # no range refuses nan
            raise ConfigError(f"--within {within}: expected a number of seconds, such as 60")
        resolved = resolve(config, settings or [])
        world = known_world(resolved)
        dealt = max((device.num_samples for device in world.devices), default=_PICTURES)
        number = pictures or max(dealt, 2)
        found = rehearse(resolved, world, number)
        _show(rehearsed(found, number))
        seconds = resolved.deploy.deadline if within is None else within
        for line in _advice(found, resolved, number, seconds):
            typer.echo(line)


def _show(drawn: "Table") -> None:
    """Print a table as wide as it is; a terminal that has fewer columns gets it wrapped."""
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    wide = console.options.update(width=_ENDLESS)
    own = console.measure(drawn, options=wide).maximum
    if not console.is_terminal:  # a file or a pipe has no width
        console.width = own
    elif console.width < own:
        drawn.padding = 0  # so that heads are folded before numbers are
        least = 2 * len(drawn.columns) + 1  # a letter in each; rich leaves out what has no room
        console.width = max(console.width, least)
    console.print(drawn, crop=False)


def _advice(found: "Rehearsal", config: "Config", pictures: int, seconds: float) -> list[str]:
    """Say how this was measured, what can be chosen, and what cannot be cut."""
    epochs = "1 epoch" if config.train.epochs == 1 else f"{config.train.epochs} epochs"
    method = f"{config.method.name} ({config.method.preset})"
    lines = [
        f"with {method}, {epochs} in batches of {config.train.batch_size}; held: parameters of "
        "the largest net that it computes; sending and receiving come on top"
    ]
    if found.redraws:
        lines.append(
            "devices get other nets, or none, from round to round: each row shows the largest and "
            f"the longest of the {found.rounds} rounds rehearsed"
        )
    lines.append(_choice(found, config, pictures, seconds))
    return [*lines, *([f"what stays full: {found.uncut}"] if found.uncut else [])]


def _choice(found: "Rehearsal", config: "Config", pictures: int, seconds: float) -> str:
    """Name the level to choose, or say what would make one possible."""
    if all(part.seconds is None for part in found.parts):
        return (
            f"no level takes part: in {found.rounds} rounds {config.method.name} asked no device "
            "to train; see its assign(), or choose another method.name"
        )
    rho = found.largest_within(seconds, pictures)
    if rho is not None:
        return f"rho = {rho:g} is the largest net that trains its round in {seconds:g} s"
    ways = ["a smaller net"]
    if config.train.epochs > 1:
        ways.insert(0, "fewer train.epochs")
    if found.shrinks:
        ways.append("a larger rho in fleet.rhos")
    *others, last = ways
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"no level trains its round in {seconds:g} s: try {listed}"
