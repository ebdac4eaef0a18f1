import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dapperfl.data.prepared import data_root, read_prepared, to_examples, write_prepared
from dapperfl.errors import DataError


def arrays(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "images": np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3),
        "labels": np.array([1, 0], dtype=np.uint8),
        "official_size": np.array(7),
    }
    return {key: value for key, value in (whole | changes).items() if value is not None}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a_train.npz"
    write_prepared(path, arrays())
    read = read_prepared(path, num_classes=2)
    for key, value in arrays().items():
        np.testing.assert_array_equal(read[key], value)
    assert [file.name for file in path.parent.iterdir()] == ["a_train.npz"]


def test_examples_have_their_channels_first(tmp_path: Path) -> None:
    examples = to_examples(arrays())
    assert examples.images.shape == (2, 3, 4, 5)
    assert examples.labels.dtype == torch.int64
    assert examples.images[1, 2, 3, 4] == arrays()["images"][1, 3, 4, 2]


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a_train.npz"
    write_prepared(path, arrays())
    before = path.read_bytes()

    def full_disk(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_prepared(path, arrays(labels=np.zeros(2, dtype=np.uint8)))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": None}, "no array 'images'"),
        ({"official_size": None}, "no array 'official_size'"),
        ({"images": np.zeros((2, 4, 5, 3), dtype=np.float32)}, "float32"),
        ({"images": np.zeros((2, 4, 5), dtype=np.uint8)}, r"\(2, 4, 5\)"),
        ({"labels": np.zeros(3, dtype=np.uint8)}, "2 images"),
        ({"labels": np.array([0, 2], dtype=np.uint8)}, r"0\.\.1"),
        ({"official_size": np.array(0.5)}, "whole number"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = tmp_path / "a_train.npz"
    write_prepared(path, arrays(**changes))
    with pytest.raises(DataError, match=said) as caught:
        read_prepared(path, num_classes=2)
    assert str(path) in str(caught.value)


class Trap:
    """An object that leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("form", ["inside", "whole"])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, form: str) -> None:
    path, mark = tmp_path / "a_train.npz", tmp_path / "run"
    if form == "inside":
        objects = np.array([Trap(mark)] * 2, dtype=object)
        np.savez(path, **arrays(labels=objects))
    else:
        path.write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(DataError, match="cannot be read"):
        read_prepared(path, num_classes=2)
    assert not mark.exists()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "bare array"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a_train.npz"
    write_prepared(path, arrays())
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[data.index(bytes(range(20))) + 10] ^= 255
        path.write_bytes(data)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        with path.open("wb") as file:
            np.save(file, arrays()["images"])
    with pytest.raises(DataError, match=r"a_train\.npz"):
        read_prepared(path, num_classes=2)


def test_the_root_is_the_option_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root(tmp_path / "option") == tmp_path / "option"
    assert data_root(None) == tmp_path / "variable"
    monkeypatch.delenv("DAPPERFL_DATA")
    assert data_root(None) == tmp_path / "cache" / "dapperfl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root(None) == Path.home() / ".cache" / "dapperfl"
