"""The idx format of MNIST: a magic number, the sizes as big-endian integers, then the bytes."""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dapperfl.data.sources.unpacking import read_up_to, unpacked
from dapperfl.errors import DataError

LIMIT = 2**28  # bytes of one file; MNIST's largest has 47 million
_BYTES = 8  # the format's code for unsigned bytes


def read_idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """Read an array of bytes; sizes are checked before anything of that size is made.

    Args:
        path: of the file, plain or packed.
        axes: how many the array must have: 3 for pictures, 1 for labels.
    """
    with unpacked(path) as stream:
        head = stream.read(4 + 4 * axes)
        shape = _shape(path, head, axes)
        size = math.prod(shape)
        data = read_up_to(stream, size + 1)
    if len(data) != size:
        found = f"only {len(data):,}" if len(data) < size else "more"
        raise DataError(
            f"{path} announces {size:,} bytes {shape} and holds {found}; it was cut off or damaged"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _shape(path: Path, head: bytes, axes: int) -> tuple[int, ...]:
    """Read the sizes from the head of a file, refusing what cannot be."""
    if len(head) < 4 + 4 * axes:
        raise DataError(f"{path} has {len(head)} bytes, too few for an idx file")
    zeros, kind, found = struct.unpack(">HBB", head[:4])
    if (zeros, kind) != (0, _BYTES):
        raise DataError(f"{path} is not an idx file of bytes (it begins with {head[:4].hex()})")
    if found != axes:
        raise DataError(
            f"{path} has {found} axes where {axes} are expected; "
            "are the files of pictures and labels mixed up?"
        )
    shape: tuple[int, ...] = struct.unpack(f">{axes}I", head[4:])
    if 0 in shape or math.prod(shape) > LIMIT:
        raise DataError(f"{path} announces an array of {shape}, which cannot be")
    return shape
