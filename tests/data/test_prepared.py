import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dapperfl.core.rng import generator
from dapperfl.data import prepared
from dapperfl.data.prepared import (
    count_prepared,
    data_root,
    official_size,
    read_prepared,
    scale,
    to_examples,
    write_prepared,
)
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
        ({"images": np.zeros((2, 4, 5, 3), dtype=np.float32)}, "float32"),
        ({"images": np.zeros((2, 4, 5, 4), dtype=np.uint8)}, r"\(2, 4, 5, 4\)"),
        ({"images": np.zeros((2, 0, 5), dtype=np.uint8)}, r"\(2, 0, 5\)"),
        ({"images": np.zeros(2, dtype=np.uint8)}, r"\(2,\)"),
        ({"labels": np.zeros(3, dtype=np.uint8)}, "2 images"),
        ({"labels": np.array([0, 2], dtype=np.uint8)}, r"0\.\.1"),
        ({"labels": np.array([0, -1])}, r"0\.\.1"),
        ({"labels": np.array([0.0, 1.0])}, "not integers"),
        ({"official_size": np.array(0.5)}, "whole number"),
        ({"official_size": np.array(0)}, "whole number"),
        ({"classes": np.array([1, 2])}, "not a list of names"),
        ({"classes": np.array(["cat", "cow"])}, r"its classes are \('cat', 'cow'\)"),
        (
            {"images": np.zeros((0, 4, 5), dtype=np.uint8), "labels": np.zeros(0, dtype=np.uint8)},
            "there are none",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = tmp_path / "a_train.npz"
    write_prepared(path, arrays(**changes))
    with pytest.raises(DataError, match=said) as caught:
        read_prepared(path, num_classes=2, classes=("cat", "dog"))
    assert str(path) in str(caught.value)


def test_grey_pictures_without_an_official_size_are_a_split_too(tmp_path: Path) -> None:
    path = tmp_path / "a_train.npz"
    grey = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)
    write_prepared(path, arrays(images=grey, official_size=None, classes=np.array(["cat", "dog"])))
    read = read_prepared(path, num_classes=2, classes=("cat", "dog"))
    assert official_size(read) == 2
    assert official_size(arrays()) == 7
    examples = to_examples(read)
    assert examples.images.shape == (2, 3, 4, 5)
    for channel in range(3):
        np.testing.assert_array_equal(examples.images[:, channel].numpy(), grey)


@pytest.mark.parametrize("size", [(28, 28), (16, 16), (40, 64), (32, 32)])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_scaled_as_pillow_scales_them(size: tuple[int, int], channels: int) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, *size, channels), dtype=np.uint8)
    pictures[0] = 255
    if channels == 1:
        pictures = pictures[..., 0]
    labels = np.zeros(5, dtype=np.uint8)
    found = to_examples({"images": pictures, "labels": labels}, side=32).images
    assert found.dtype == torch.uint8
    assert found.is_contiguous()
    for ours, picture in zip(found, pictures, strict=True):
        image = Image.fromarray(picture).convert("RGB")
        theirs = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR))
        difference = ours.permute(1, 2, 0).numpy().astype(int) - theirs
        assert abs(difference).max() <= 1


def test_many_pictures_are_scaled_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = torch.randint(256, (7, 1, 16, 16), generator=generator(0), dtype=torch.uint8)
    at_once = scale(pictures, 32)
    monkeypatch.setattr(prepared, "_CHUNK", 3)
    assert torch.equal(scale(pictures, 32), at_once)


def test_pictures_are_counted_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "a_train.npz"
    write_prepared(path, arrays())
    assert count_prepared(path) == 2
    write_prepared(path, arrays(labels=None))
    with pytest.raises(DataError, match="no array 'labels'"):
        count_prepared(path)


def forged(path: Path, shape: str) -> None:
    """Write an archive whose `images` say they have this shape."""
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", member + bytes(100))


@pytest.mark.parametrize(
    "shape", ["(1000000, 1000, 1000)", "(10**9,)", "(-1, -100)", "(99,)", "[100]", "((100,),)"]
)
def test_an_array_that_lies_about_its_size_is_refused(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "a_train.npz"
    forged(path, shape)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"a_train\.npz cannot be read"):
        read_prepared(path, num_classes=2)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


def test_an_archive_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a_train.npz"
    np.savez_compressed(path, **arrays(images=np.zeros((2, 1000, 1000, 3), dtype=np.uint8)))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(prepared, "LIMIT", 5_000_000)
    with pytest.raises(DataError, match="unpacks to more than 5,000,000 bytes"):
        read_prepared(path, num_classes=2)


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
    said = "array 'labels' holds Python objects" if form == "inside" else "cannot be read"
    with pytest.raises(DataError, match=said):
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
