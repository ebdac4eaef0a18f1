"""What pictures look like, in a dozen numbers, and pictures shown as they look elsewhere.

The style of a picture is the mean and the deviation of each of its channels: its colour and its
contrast (Reinhard et al., "Color transfer between images", 2001). The style of a device is how
these are spread over its pictures. Devices that know each other's styles can train as if their
pictures came from all of them (Chen et al., "Federated domain generalization for image
recognition via cross-client style transfer", 2023, with the features of a large net; pixels are
enough here). Where devices train on one domain each, this is also what lets their batch-norm
statistics be averaged: they are of the same styles.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dapperfl.core.messages import Assignment, ClientUpdate, ServerState
from dapperfl.core.net import Batch

OWN = "its_style"  # what an update brings
ALL = "all_styles"  # what an assignment brings
SHARE = "restyle_share"  # beside it: how much of what is trained is shown in them
MOST = 32  # devices whose styles are remembered; in a larger fleet the latest stand for all
_FAINT = 0.05  # smaller deviations of normalised pictures count as this, so that noise stays noise


def has_style(inputs: Tensor) -> bool:
    """Tell whether inputs have channels that extend in space or time; vectors and ids do not.

    Nor does a vector that comes as a picture of one pixel: in another style nothing is left of it.
    """
    return inputs.shape[2:].numel() > 1 and inputs.is_floating_point()


def style_of(batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Return mean and spread of the means, then of the deviations, by channel: (4, channels).

    Nothing is returned for inputs that have no style.
    """
    found = [
        torch.cat(_statistics(batch.x), 1).flatten(1) for batch in batches if has_style(batch.x)
    ]
    if not found:
        return {}
    means, deviations = torch.cat(found).chunk(2, 1)
    spread = [each.std(0, correction=0) for each in (means, deviations)]
    return {OWN: torch.stack([means.mean(0), spread[0], deviations.mean(0), spread[1]])}


def restyled(batch: Batch, styles: Tensor, share: Tensor | float) -> Batch:
    """Show a share of the pictures in styles drawn from those of the devices.

    Args:
        batch: Pictures (batch, channels, ...); labels stay.
        styles: One device a row: (devices, 4, channels), as `style_of` returns them.
        share: How likely a picture is restyled.
    """
    pictures = batch.x
    with torch.no_grad():  # as few kernels as can be: this is part of every step
        mean, deviation = _statistics(pictures)
        count, place = len(pictures), pictures.device
        drawn = torch.randint(len(styles), (count,), device=place)
        middle, spread = styles.index_select(0, drawn).view(count, 2, 2, -1).unbind(2)
        look = torch.addcmul(middle, spread, torch.randn(count, 2, 1, device=place))
        new_mean, new_deviation = (each.view_as(mean) for each in look.unbind(1))
        chosen = torch.rand_like(mean[:, :1]) < share
        ratio = new_deviation.abs() / deviation.clamp_min(_FAINT)
        scale = torch.where(chosen, ratio, 1.0)
        offset = torch.where(chosen, torch.addcmul(new_mean, mean, ratio, value=-1), 0.0)
    return batch._replace(x=torch.addcmul(offset.to(pictures), pictures, scale.to(pictures)))


def with_styles(assignment: Assignment, server: ServerState, share: float) -> Assignment:
    """Hand out the styles known so far, always as many rows: a recorded step fits any round.

    So does the share of pictures that are to be restyled, as it is a tensor.
    """
    if not server.styles:
        return assignment
    known = server.styles["rows"][server.styles["known"]]
    rows = known[torch.arange(len(server.styles["rows"]), device=known.device) % len(known)]
    told = {ALL: rows, SHARE: torch.full((), share, device=rows.device)}
    return replace(assignment, shared={**assignment.shared, **told})


def without_style(
    updates: Iterable[ClientUpdate], found: dict[int, Tensor]
) -> Iterator[ClientUpdate]:
    """Take the styles out of updates, by device, so that a method sees what is its own."""
    for update in updates:
        shared = dict(update.shared)
        if OWN in shared:
            found[update.device.id] = shared.pop(OWN)
        yield replace(update, shared=shared)


def remembering(server: ServerState, found: Mapping[int, Tensor]) -> ServerState:
    """Return the state with these styles in the places of their devices."""
    if not found:
        return server
    some = next(iter(found.values()))
    places = min(MOST, max(len(server.fleet), 1))
    none = torch.zeros(places, dtype=torch.bool, device=some.device)
    rows = server.styles.get("rows", some.new_zeros(places, *some.shape)).clone()
    known = server.styles.get("known", none).clone()
    for device in sorted(found):  # in an order that does not depend on who answered first
        place = device % len(rows)  # the fleet may have grown since the first round
        rows[place], known[place] = found[device], True
    return replace(server, styles={"rows": rows, "known": known})


def _statistics(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of each picture, broadcastable to them."""
    across = tuple(range(2, pictures.dim()))
    deviation, mean = torch.std_mean(pictures.float(), across, keepdim=True, correction=0)
    return mean, deviation
