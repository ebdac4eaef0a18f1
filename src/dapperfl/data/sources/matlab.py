"""MATLAB files (version 5 and 7) as far as SVHN needs them: named arrays of whole numbers.

Written for files from strangers: nothing is unpacked or set aside before its size is checked, and
cells, structures and objects are named and refused.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dapperfl.data.sources.unpacking import read_up_to
from dapperfl.errors import DataError

LIMIT = 2**30  # bytes of all unpacked arrays; SVHN's largest has 225 million
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_REFUSED = {1: "a cell array", 2: "a structure", 3: "an object", 5: "a sparse array"}
_LOGICAL_OR_COMPLEX = 0x0A00


@dataclass(frozen=True)
class _Element:
    """One tagged piece of a file."""

    kind: int
    data: memoryview


def read_matlab(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Read the arrays with these names.

    Raises:
        DataError: the file is damaged, of another kind, or lacks one of them.
    """
    try:
        with path.open("rb") as file:
            raw = memoryview(read_up_to(file, LIMIT + 1))
        order = _byte_order(raw)
        arrays = dict(_arrays(raw[128:], order, names))
    except (OSError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it is damaged or another file") from None
    if lacking := [name for name in names if name not in arrays]:
        raise DataError(
            f"{path} holds no array {' and no array '.join(lacking)}; it is another file"
        )
    return arrays


def _byte_order(raw: memoryview) -> Literal["<", ">"]:
    """Read the head of the file."""
    if bytes(raw[:10]).startswith((b"\x89HDF\r\n\x1a\n", b"MATLAB 7.3")):
        raise ValueError("MATLAB 7.3 files are not read; save it with -v7")
    if len(raw) > LIMIT:
        raise ValueError(f"it has more than {LIMIT:,} bytes")
    mark = bytes(raw[126:128])
    if mark not in (b"IM", b"MI"):
        raise ValueError("it is not a MATLAB file")
    return "<" if mark == b"IM" else ">"


def _elements(data: memoryview, order: str) -> Iterator[_Element]:
    """Cut bytes into tagged pieces."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack(f"{order}II", data[at : at + 8])
        if kind >> 16:  # a small piece has its size and data in the tag
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
            step = 8
            if size > 4:
                raise ValueError(f"a small piece of {size} bytes")
        else:
            start = at + 8
            # Pieces are padded to eight bytes, except those that are compressed.
            step = 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(data):
            raise ValueError(f"{start + size - len(data):,} bytes are missing at its end")
        yield _Element(kind, data[start : start + size])
        at += step


def _arrays(
    data: memoryview, order: str, names: tuple[str, ...]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Read those arrays of a file that are asked for."""
    left = LIMIT
    for outer in _elements(data, order):
        element = outer
        if outer.kind == _COMPRESSED:
            element = _decompress(outer.data, order, left)
            left -= len(element.data)
        if element.kind == _MATRIX and (found := _array(element.data, order, names)) is not None:
            yield found


def _decompress(data: memoryview, order: str, limit: int) -> _Element:
    """Unpack one piece, by as many bytes as it announces and no more."""
    stream = zlib.decompressobj()
    tag = stream.decompress(data, 8)
    kind, size = struct.unpack(f"{order}II", tag)
    if not 0 < size <= limit:
        raise ValueError(f"an array of {size:,} bytes cannot be")
    inner = stream.decompress(stream.unconsumed_tail, size)
    if len(inner) < size:
        raise ValueError(f"an array of {size:,} bytes ends after {len(inner):,}")
    return _Element(kind, memoryview(inner))


def _array(data: memoryview, order: str, names: tuple[str, ...]) -> tuple[str, NDArray[Any]] | None:
    """Read one array: its flags, its sizes, its name and its numbers, in this order."""
    pieces = _elements(data, order)
    flags, sizes, title = (next(pieces, _Element(0, memoryview(b""))) for _ in range(3))
    name = bytes(title.data).decode("ascii", "replace")
    if name not in names:
        return None
    (word,) = struct.unpack(f"{order}I", flags.data[:4])
    if word & 0xFF in _REFUSED or word & _LOGICAL_OR_COMPLEX:
        raise ValueError(f"{name} is {_REFUSED.get(word & 0xFF, 'not of plain numbers')}")
    numbers = next(pieces, None)
    if numbers is None or numbers.kind not in _NUMBERS:
        raise ValueError(f"{name} holds no numbers")
    shape = struct.unpack(f"{order}{len(sizes.data) // 4}i", sizes.data)
    flat = np.frombuffer(numbers.data, dtype=f"{order}{_NUMBERS[numbers.kind]}")
    if min(shape, default=-1) < 0 or len(shape) > 8 or math.prod(shape) != len(flat):
        raise ValueError(f"{name} announces {shape} and holds {len(flat):,} numbers")
    return name, flat.reshape(shape, order="F")
