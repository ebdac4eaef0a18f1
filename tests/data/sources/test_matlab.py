import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapperfl.data.sources import matlab
from dapperfl.data.sources.matlab import read_matlab
from dapperfl.errors import DataError
from tests.data.official import pixels, tried

HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train_32x32.mat"


def save(path: Path, arrays: dict[str, Any], *, packed: bool = True) -> None:
    pytest.importorskip("scipy.io").savemat(path, arrays, do_compression=packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i4", "i8", "f4", "f8"])
def test_arrays_are_read_as_scipy_reads_them(path: Path, kind: str, packed: bool) -> None:
    stored = {"X": pixels(3, 4, 3, 5), "other": np.ones(3), "y": np.arange(5).astype(kind)}
    save(path, stored, packed=packed)
    reference = pytest.importorskip("scipy.io").loadmat(path)
    found = read_matlab(path, ("X", "y"))
    assert set(found) == {"X", "y"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, reference[name])


def test_a_big_endian_file_is_read(path: Path) -> None:
    numbers = struct.pack(">II4B4x", 2, 4, 1, 2, 3, 4)
    flags = struct.pack(">IIII", 6, 8, 9, 0)
    sizes = struct.pack(">IIii", 5, 8, 2, 2)
    name = struct.pack(">HH4s", 1, 1, b"y")
    body = flags + sizes + name + numbers
    path.write_bytes(HEAD[:126] + b"MI" + struct.pack(">II", 14, len(body)) + body)
    np.testing.assert_array_equal(read_matlab(path, ("y",))["y"], [[1, 3], [2, 4]])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.array([[1, "a"]], dtype=object), "y is a cell array"),
        ({"field": 1}, "y is a structure"),
        (np.array([[1 + 2j]]), "y is not of plain numbers"),
    ],
)
def test_what_is_no_plain_array_is_named_and_refused(path: Path, value: Any, said: str) -> None:
    save(path, {"y": value})
    with pytest.raises(DataError, match=said):
        read_matlab(path, ("y",))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a MATLAB file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), "7.3"),
        (HEAD, "no array X and no array y"),
        (HEAD + b"\x0e", "cannot be read"),
        (HEAD + struct.pack("<II", 14, 1000), "1,000 bytes are missing"),
        (HEAD + struct.pack("<II", 15, 4) + b"junk", "cannot be read"),
    ],
)
def test_a_damaged_file_is_named(path: Path, data: bytes, said: str) -> None:
    path.write_bytes(data)
    with pytest.raises(DataError, match=said) as caught:
        read_matlab(path, ("X", "y"))
    assert str(path) in str(caught.value)


def test_a_truncated_file_is_named(path: Path) -> None:
    save(path, {"X": pixels(8, 8)})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="20 bytes are missing"):
        read_matlab(path, ("X",))


def test_a_bomb_is_refused_before_it_is_unpacked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matlab, "LIMIT", 10_000_000)
    body = zlib.compress(struct.pack("<II", 14, 11_000_000) + bytes(11_000_000))
    path.write_bytes(HEAD + struct.pack("<II", 15, len(body)) + body)
    tracemalloc.start()
    with pytest.raises(DataError, match="11,000,000 bytes cannot be"):
        read_matlab(path, ("X",))
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


def test_many_arrays_that_are_a_bomb_together_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matlab, "LIMIT", 2_500_000)
    body = zlib.compress(struct.pack("<II", 14, 1_000_000) + bytes(1_000_000))
    path.write_bytes(HEAD + (struct.pack("<II", 15, len(body)) + body) * 3)
    with pytest.raises(DataError, match="1,000,000 bytes cannot be"):
        read_matlab(path, ("X",))


@given(position=st.integers(128, 300), byte=st.integers(0, 255), packed=st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_is_survived(path: Path, position: int, byte: int, packed: bool) -> None:
    save(path, {"y": np.arange(40, dtype=np.uint8), "X": pixels(2, 3, 4)}, packed=packed)
    data = bytearray(path.read_bytes())
    data[position % len(data)] = byte
    path.write_bytes(data)
    found, said = tried(lambda: read_matlab(path, ("X", "y")))
    assert str(path) in said if found is None else set(found) == {"X", "y"}
