"""How many pictures each device of a domain gets, and which."""

import logging

import torch
from torch import Tensor

from dapperfl.errors import ConfigError

log = logging.getLogger(__name__)


def portions(
    domain: str, available: int, wanted: int, devices: int, *, least: int = 1
) -> list[int]:
    """Say how many pictures each device of a domain gets, at least `least`.

    If there are too few, the first devices get what they want and the last ones share the rest
    evenly: at least one full portion among them, so that none is left with next to nothing, and
    more of them where even that would be too few.
    """
    if available == 0:
        raise ConfigError(
            f"domain {domain} has no training pictures, so that no device can have any; leave it "
            "out, or only test on it (data.held_out)"
        )
    if wanted < least:
        much = "no picture at all" if wanted == 0 else f"{wanted} of at least {least} pictures"
        raise ConfigError(
            f"data.fraction gives a device of domain {domain} {much}; raise it: there are "
            f"{available} to train on"
        )
    if devices * wanted <= available:
        return [wanted] * devices
    if available < devices * least:
        few = "none" if least == 1 else f"fewer than {least}"
        raise ConfigError(
            f"domain {domain} has {available} pictures for {devices} devices, so that some would "
            f"have {few}; use fewer fleet.devices"
        )
    full = max(available // wanted - 1, 0)
    while available - full * wanted < (devices - full) * least:
        full -= 1
    rest, sharing = available - full * wanted, devices - full
    sizes = [rest // sharing + (place < rest % sharing) for place in range(sharing)]
    log.warning(
        "domain %s has %d pictures, too few for %d devices with %d each: its last %d share %d",
        *(domain, available, devices, wanted, sharing, rest),
    )
    return [wanted] * full + sizes


def cut(available: int, sizes: list[int], rng: torch.Generator) -> list[Tensor]:
    """Shuffle positions and cut them into parts of these sizes, none in two parts."""
    order = torch.randperm(available, generator=rng)[: sum(sizes)]
    return list(torch.split(order, sizes))
