"""No device without a label: the repair of a small draw."""

from collections.abc import Sequence

import torch
from torch import Tensor


def by_class(labels: Sequence[int]) -> dict[int, list[int]]:
    """Return the positions of each class, in ascending order of both."""
    places: dict[int, list[int]] = {label: [] for label in sorted(set(labels))}
    for place, label in enumerate(labels):
        places[label].append(place)
    return places


def repair(
    held: Tensor, labels: Sequence[int], places: dict[int, list[int]], rng: torch.Generator
) -> Tensor:
    """Give a device one picture of each class that its draw missed, for one that it has twice.

    The new picture may be another device's too. Where no class is there twice any more, nothing is
    given back and the device ends up with more pictures than it drew.

    Args:
        held: the positions in the domain's training set that the device drew.
        labels: of that training set; a class that it does not have cannot be missed.
        places: the same by class, looked up once for all devices.
        rng: the device's own.
    """
    mine = held.tolist()
    there = {labels[place] for place in mine}
    for missing in [label for label in places if label not in there]:
        candidates = places[missing]
        added = candidates[_draw(len(candidates), rng)]
        own = [labels[place] for place in mine]
        spare = [index for index, label in enumerate(own) if own.count(label) > 1]
        if spare:
            del mine[spare[_draw(len(spare), rng)]]
        mine.append(added)
    return torch.tensor(mine, dtype=torch.int64)


def _draw(count: int, rng: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=rng))
