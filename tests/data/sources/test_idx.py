import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapperfl.data.sources.idx import read_idx
from dapperfl.errors import DataError
from tests.data.official import idx, pixels, tried


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_come_back_in_their_shape(tmp_path: Path, packed: bool) -> None:
    path, array = tmp_path / "file", pixels(3, 5, 4)
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    np.testing.assert_array_equal(read_idx(path, axes=3), array)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "too few"),
        (b"\0\0\x08\x03\0\0", "too few"),
        (b"PK\3\4" + bytes(100), "504b0304"),
        (b"\0\0\x0d\x03" + bytes(100), "00000d03"),
        (idx(pixels(3)) + bytes(16), "1 axes where 3"),
        (idx(pixels(3, 5, 4))[:-1], "60 bytes .* only 59"),
        (idx(pixels(3, 5, 4)) + b"x", "holds more"),
        (gzip.compress(idx(pixels(3, 5, 4)), mtime=0)[:-9], "cannot be read"),
        (struct.pack(">HBB3I", 0, 8, 3, 0, 28, 28), r"\(0, 28, 28\), which cannot be"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(DataError, match=said) as caught:
        read_idx(path, axes=3)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("sizes", [(2**32 - 1,) * 3, (1_000_000, 1000, 1000)])
def test_absurd_sizes_are_refused_before_memory_is_taken(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    path = tmp_path / "images"
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, *sizes))
    tracemalloc.start()
    with pytest.raises(DataError, match="cannot be"):
        read_idx(path, axes=3)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


def test_announced_bytes_that_are_not_there_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(struct.pack(">HBB3I", 0, 8, 3, 200_000, 28, 28))
    tracemalloc.start()
    with pytest.raises(DataError, match="only 0"):
        read_idx(path, axes=3)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


def test_a_gzip_bomb_is_unpacked_no_further_than_its_head_says(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(pixels(1, 28, 28)) + bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match="holds more"):
        read_idx(path, axes=3)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


@given(
    head=st.sampled_from([b"", b"\0\0\x08\x03", b"\0\0\x08\x01", b"\x1f\x8b\x08", b"BZh9"]),
    rest=st.binary(max_size=64),
    axes=st.sampled_from([1, 3]),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused_politely(
    tmp_path: Path, head: bytes, rest: bytes, axes: int
) -> None:
    path = tmp_path / "any"
    path.write_bytes(head + rest)
    array, said = tried(lambda: read_idx(path, axes=axes))
    assert str(path) in said if array is None else idx(array) == head + rest
