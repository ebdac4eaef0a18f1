"""Shadows: for every entry of an activation, the number of the channel it belongs to.

A shadow has its tensor's shape, so reshapes and concatenations are simply applied to it as well.
Axes along which the channel does not change have stride 0: a shadow costs next to no memory.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

NO_CHANNEL = -1  # an entry that belongs to no channel: image input, positions, constants


class Ties:
    """Numbers that must share one fate: a union-find over channels."""

    def __init__(self, count: int = 0) -> None:
        self.parent = list(range(count))

    def __len__(self) -> int:
        return len(self.parent)

    def grow(self, count: int) -> None:
        """Add so many numbers, each on its own."""
        self.parent.extend(range(len(self), len(self) + count))

    def root(self, item: int) -> int:
        """Return the representative of a number: the smallest of those tied to it."""
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def unite(self, first: int, second: int) -> None:
        """Tie two numbers."""
        low, high = sorted((self.root(first), self.root(second)))
        self.parent[high] = low


def blank(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Return the shadow of a tensor without channels."""
    return torch.full((), NO_CHANNEL).expand(shape)


def spread(channels: Tensor, axis: int, shape: torch.Size) -> Tensor:
    """Return the shadow of this shape whose channels run along one axis."""
    view = [1] * len(shape)
    view[axis] = -1
    return channels.reshape(view).expand(shape)


def slim(shadow: Tensor) -> Tensor:
    """Cut the axes along which nothing changes down to size 1."""
    for axis in range(shadow.dim()):
        if shadow.stride(axis) == 0 and shadow.shape[axis] > 1:
            shadow = shadow.narrow(axis, 0, 1)
    return shadow


def varies(shadow: Tensor, axis: int) -> bool:
    """Tell whether the channel depends on the position along this axis."""
    if shadow.dim() == 0 or shadow.shape[axis] <= 1 or shadow.stride(axis) == 0:
        return False
    thin = slim(shadow)
    return bool((thin != thin.narrow(axis, 0, 1)).any())


def distinct(shadow: Tensor) -> list[int]:
    """Return the different entries, sorted."""
    found: list[int] = torch.unique(slim(shadow)).tolist()
    return found


def distinct_pairs(first: Tensor, second: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the distinct pairs of entries of two shadows of one shape."""
    for axis in range(first.dim()):
        if first.stride(axis) == 0 and second.stride(axis) == 0:  # expanded: all entries equal
            first, second = first.narrow(axis, 0, 1), second.narrow(axis, 0, 1)
    if not first.numel():
        return
    span = int(torch.maximum(first.amax(), second.amax())) + 2
    for code in torch.unique((first + 1) * span + second + 1).tolist():
        yield code // span - 1, code % span - 1
