"""No device without a label: the repair of a small draw."""

import torch
from torch import Tensor


def repair(held: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
    """Give a device one picture of each class that its draw missed, for one that it has twice.

    The new picture may be another device's too. Where no class is there twice any more, nothing is
    given back and the device ends up with more pictures than it drew.

    Args:
        held: the positions in the domain's training set that the device drew.
        labels: of that training set; a class that it does not have cannot be missed.
        rng: the device's own.
    """
    mine = held.tolist()
    classes = labels.tolist()
    for missing in sorted(set(classes) - {classes[place] for place in mine}):
        candidates = (labels == missing).nonzero().flatten().tolist()
        added = candidates[_draw(len(candidates), rng)]
        own = [classes[place] for place in mine]
        spare = [index for index, label in enumerate(own) if own.count(label) > 1]
        if spare:
            del mine[spare[_draw(len(spare), rng)]]
        mine.append(added)
    return torch.tensor(mine, dtype=torch.int64)


def _draw(count: int, rng: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=rng))
