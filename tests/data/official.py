"""Small official files for tests: as valid as the real ones, with pictures known by heart."""

import bz2
import gzip
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dapperfl.data.sources.found import Pictures
from dapperfl.data.sources.survey import Survey, survey
from dapperfl.errors import DataError

Bytes = NDArray[np.uint8]


def pixels(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: Bytes) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return head + array.tobytes()


def write_mnist(folder: Path, split: str, num: int = 20, *, packed: bool = False) -> Pictures:
    prefix = {"train": "train", "test": "t10k"}[split]
    images, labels = pixels(num, 28, 28), np.arange(num, dtype=np.uint8) % 10
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        path = folder / f"{prefix}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return Pictures(images, labels)


def usps_rows(num: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return pixels in [-1, 1], among them both ends, and digits."""
    values = np.random.default_rng(1).uniform(-1, 1, (num, 256)).round(3)
    values[:, 0], values[:, 1], values[:, 2] = -1, 1, 0
    return values, np.arange(num) % 10


def libsvm_text(num: int) -> str:
    values, digits = usps_rows(num)
    lines = []
    for row, digit in zip(values, digits, strict=True):
        entries = [f"{place}:{value}" for place, value in enumerate(row, start=1) if value != 0]
        lines.append(f"{digit + 1} {' '.join(entries)}\n")
    return "".join(lines)


def zip_text(num: int) -> str:
    values, digits = usps_rows(num)
    return "".join(
        f"{digit:.4f} {' '.join(f'{value:.4f}' for value in row)} \n"
        for row, digit in zip(values, digits, strict=True)
    )


def write_usps(folder: Path, split: str, num: int = 20) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = {"train": "usps.bz2", "test": "usps.t.bz2"}[split]
    (folder / name).write_bytes(bz2.compress(libsvm_text(num).encode()))


def write_svhn(folder: Path, split: str, num: int = 20, **changes: Any) -> Pictures:
    """Write a .mat as MATLAB does; its tens are zeros."""
    images, labels = pixels(num, 32, 32, 3), np.arange(num, dtype=np.uint8) % 10
    stored = {
        "X": images.transpose(1, 2, 3, 0),
        "y": np.where(labels == 0, 10, labels).astype(np.uint8).reshape(-1, 1),
    }
    folder.mkdir(parents=True, exist_ok=True)
    savemat = pytest.importorskip("scipy.io").savemat
    savemat(folder / f"{split}_32x32.mat", stored | changes, do_compression=True)
    return Pictures(images, labels)


def write_images(
    folder: Path, classes: Sequence[str], per_class: int = 2, *, ending: str = "png"
) -> list[Bytes]:
    """Write pictures of 40 × 36 into class folders; return them in sorted order."""
    written = []
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in range(per_class):
            picture = pixels(36, 40, 3, seed=100 * label + place)
            Image.fromarray(picture).save(folder / name / f"frame_{place:04}.{ending}")
            written.append(picture)
    return written


def small(picture: Bytes) -> Bytes:
    """Scale a picture as the paper's pipeline does."""
    image = Image.fromarray(picture).resize((32, 32), Image.Resampling.BILINEAR)
    return np.asarray(image)


def read(find: Callable[[Survey, str], Any], folder: Path, split: str) -> Pictures:
    """Find a split and read it."""
    pictures = find(survey(folder), split).read(lambda _done, _total: None)
    assert isinstance(pictures, Pictures)
    return pictures


def tried(action: Callable[[], Any]) -> tuple[Any, str]:
    """Return what an action returns, or the message of the one error it may raise."""
    try:
        return action(), ""
    except DataError as error:
        return None, str(error)
