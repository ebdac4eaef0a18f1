"""`dapperfl levels`: what each level costs, and which one suits this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

from dapperfl.cli.border import border
from dapperfl.cli.options import ConfigFile, Settings

if TYPE_CHECKING:
    from dapperfl.lab.config import Config
    from dapperfl.lab.rehearsal import Rehearsal

_PICTURES = 500  # of a device of which nobody knows how many it will bring


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

    Run it on a device to choose the --rho it joins with. It trains two short rounds
    of every level in fleet.rhos on made-up pictures, and writes nothing.
    """
    with border():
        from rich.console import Console

        from dapperfl.lab.rehearsal import rehearse, table
        from dapperfl.lab.resolve import resolve
        from dapperfl.lab.world import known_world

        resolved = resolve(config, settings or [])
        world = known_world(resolved)
        dealt = max((device.num_samples for device in world.devices), default=_PICTURES)
        number = pictures or max(dealt, 2)
        found = rehearse(resolved, world, number)
        Console(markup=False, emoji=False, highlight=False).print(table(found, number))
        seconds = resolved.deploy.deadline if within is None else within
        for line in _advice(found, resolved, number, seconds):
            typer.echo(line)


def _advice(found: "Rehearsal", config: "Config", pictures: int, seconds: float) -> list[str]:
    """Say how this was measured, what can be chosen, and what cannot be cut."""
    epochs = "1 epoch" if config.train.epochs == 1 else f"{config.train.epochs} epochs"
    method = f"{config.method.name} ({config.method.preset})"
    lines = [
        f"with {method}, {epochs} in batches of {config.train.batch_size}; held: parameters of "
        "the largest net that it computes; sending and receiving come on top"
    ]
    rho = found.largest_within(seconds, pictures)
    if rho is None:
        lines.append(
            f"no level trains its round in {seconds:g} s: fewer train.epochs, a smaller net, or "
            "a larger rho in fleet.rhos"
        )
    else:
        lines.append(f"rho = {rho:g} is the largest net that trains its round in {seconds:g} s")
    return [*lines, *([f"what stays full: {found.uncut}"] if found.uncut else [])]
