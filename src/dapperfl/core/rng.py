"""Randomness without global seeds: one generator per (seed, purpose, round, client, …).

A result must depend neither on the order in which clients are run nor on how many rounds came
before, so nothing here remembers anything: the path alone decides the stream.
"""

import hashlib
from dataclasses import dataclass

import torch


def derive_seed(seed: int, *path: int | str) -> int:
    """Mix a run's seed and a path into one 63-bit seed; different paths are independent."""
    text = "/".join([str(seed), *map(repr, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a CPU generator that depends only on its arguments."""
    return torch.Generator().manual_seed(derive_seed(seed, *path))


@dataclass(frozen=True)
class Dice:
    """The random streams of one device in one round."""

    seed: int
    round_num: int
    device: int

    def shared(self) -> torch.Generator:
        """Return a stream that is the same for all devices of the round."""
        return generator(self.seed, "shared", self.round_num)

    def own(self) -> torch.Generator:
        """Return a stream of this device alone."""
        return generator(self.seed, "own", self.round_num, self.device)
