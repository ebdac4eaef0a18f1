"""Randomness without global seeds: one generator per (seed, purpose, round, client, …).

A result must depend neither on the order in which clients are run nor on how many rounds came
before, so nothing here remembers anything: the path alone decides the stream.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Foreign = tuple[Any, ...]  # where generators outside torch stand; can be compared


def derive_seed(seed: int, *path: int | str) -> int:
    """Mix a run's seed and a path into one 63-bit seed; different paths are independent."""
    text = "/".join([str(seed), *map(repr, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a CPU generator that depends only on its arguments."""
    return torch.Generator().manual_seed(derive_seed(seed, *path))


def foreign() -> Foreign:
    """Return where Python's generator stands, and numpy's: nets often skip blocks by these."""
    numpy = sys.modules.get("numpy")  # a net that draws from it has imported it
    if numpy is None:
        return random.getstate(), None
    kind, key, *place = numpy.random.get_state()
    return random.getstate(), (kind, key.tobytes(), *place)  # bytes: read at every step of a CPU


def set_foreign(state: Foreign) -> None:
    """Put the generators outside torch where they stood."""
    plain, numpys = state
    random.setstate(plain)
    if numpys is not None:
        numpy = sys.modules["numpy"]
        kind, key, *place = numpys
        numpy.random.set_state((kind, numpy.frombuffer(key, numpy.uint32), *place))


@contextmanager
def foreign_seeded(seed: int) -> Iterator[None]:
    """Seed the generators outside torch for a while."""
    before = foreign()
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        set_foreign(before)


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
