"""Pictures that a device keeps aside, to choose between models without looking at the test set."""

import math

import torch

from dapperfl.data.benchmark import Examples

LEAST = 2  # pictures left for training: batch normalisation cannot train on one


def set_aside(examples: Examples, share: float, rng: torch.Generator) -> tuple[Examples, Examples]:
    """Split a device's pictures into those to train on and those kept aside, label by label.

    Every class keeps a picture in training; the order of both parts is that of the whole.
    """
    aside = torch.zeros(len(examples), dtype=torch.bool)
    order = torch.randperm(len(examples), generator=rng)
    shuffled = examples.labels[order]
    places = [order[shuffled == label] for label in sorted(set(shuffled.tolist()))]
    counts = _counts([len(place) for place in places], share)
    for place, count in zip(places, counts, strict=True):
        aside[place[:count]] = True
    kept, apart = (~aside).nonzero().flatten(), aside.nonzero().flatten()
    return examples.pick(kept), examples.pick(apart)


def _counts(sizes: list[int], share: float) -> list[int]:
    """Say how many of each class go aside: the nearest whole numbers with the right sum.

    That sum is missed where classes are too small; none gives much more than its share instead.
    """
    exact = [share * size for size in sizes]
    counts = [min(math.floor(part), size - 1) for part, size in zip(exact, sizes, strict=True)]
    total = max(min(round(share * sum(sizes)), sum(sizes) - LEAST), 0)
    by_remainder = sorted(
        range(len(sizes)), key=lambda index: math.floor(exact[index]) - exact[index]
    )
    for index in by_remainder:
        room = min(math.ceil(exact[index]), sizes[index] - 1)
        if sum(counts) < total and counts[index] < room:
            counts[index] += 1
    while sum(counts) > total:
        counts[counts.index(max(counts))] -= 1
    return counts
