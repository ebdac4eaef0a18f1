"""The prepared format: one .npz of bytes per domain and split, `<benchmark>/<domain>_<split>.npz`.

Files are written whole or not at all, and nothing read from them is trusted before it is checked;
nothing is ever unpickled. Pictures keep their native size on the disk.
"""

import math
import os
import struct
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dapperfl.data.benchmark import Examples
from dapperfl.errors import DataError

SPLITS = ("train", "test")
LIMIT = 4 * 2**30  # bytes of one unpacked file
_CHUNK = 4096  # pictures scaled at a time
_DAMAGE = (OSError, ValueError, TypeError, EOFError, RuntimeError, struct.error)

Arrays = Mapping[str, NDArray[Any]]
Shape = tuple[int, ...]


def data_root(root: Path | None) -> Path:
    """Say where prepared data lives: the given root, DAPPERFL_DATA, or the user's cache folder."""
    if root is not None:
        return root
    if named := os.environ.get("DAPPERFL_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "dapperfl"


def split_path(folder: Path, domain: str, split: str) -> Path:
    """Return the place of one split in the folder of its benchmark."""
    return folder / f"{domain}_{split}.npz"


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes its name only when all of it is on the disk.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.part")  # two writers never collide
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_prepared(path: Path, arrays: Arrays) -> None:
    """Write one split so that no reader ever sees half of it.

    Raises:
        OSError: the folder cannot be written.
    """
    named: dict[str, Any] = dict(arrays)
    with written_whole(path) as file:
        np.savez(file, **named)


def read_prepared(path: Path, *, num_classes: int, classes: Sequence[str] | None = None) -> Arrays:
    """Read one split back and check it.

    Args:
        path: of the .npz file.
        num_classes: labels must be below it.
        classes: the names a file that has class names must agree with.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        DataError: it is damaged, or does not hold labelled pictures.
    """
    with _named_damage(path), path.open("rb") as file:
        _shapes(file)
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    wrong = _what_is_wrong(arrays, num_classes)
    if wrong is None and classes is not None and "classes" in arrays:
        named = tuple(arrays["classes"].tolist())
        wrong = None if named == tuple(classes) else f"its classes are {named}, not {classes}"
    if wrong:
        raise DataError(f"{path}: {wrong}; it has to be prepared again")
    return arrays


def count_prepared(path: Path) -> int:
    """Count the pictures of one split without reading them.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        DataError: it is damaged.
    """
    with _named_damage(path), path.open("rb") as file:
        shapes = _shapes(file)
        if not shapes.get("labels"):
            raise ValueError("it has no array 'labels'")
    return shapes["labels"][0]


def official_size(arrays: Arrays) -> int:
    """Return the size of the whole official split, which these pictures may be a part of."""
    return int(arrays.get("official_size", len(arrays["labels"])))


def to_examples(arrays: Arrays, *, side: int | None = None) -> Examples:
    """Turn the arrays of one split into tensors: RGB, channels first.

    Args:
        arrays: of one split.
        side: scale the pictures to squares of so many pixels; None keeps their size.
    """
    images = torch.from_numpy(np.ascontiguousarray(arrays["images"]))
    images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
    if side is not None:
        images = scale(images, side)
    images = images.expand(-1, 3, -1, -1).contiguous()
    return Examples(images, torch.from_numpy(arrays["labels"].astype(np.int64)))


def scale(images: Tensor, side: int) -> Tensor:
    """Scale bytes to squares as Pillow's bilinear filter does, within rounding.

    Args:
        images: (n, channels, height, width), uint8.
        side: of the squares, in pixels.
    """
    if images.shape[-2:] == (side, side):
        return images
    scaled = [
        F.interpolate(part.float(), size=(side, side), mode="bilinear", antialias=True)
        .round_()
        .clamp_(0, 255)
        .to(torch.uint8)
        for part in torch.split(images, _CHUNK)
    ]
    return torch.cat(scaled)


@contextmanager
def _named_damage(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes readers raise into an error that names it."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (*_DAMAGE, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it has to be prepared again") from None


def _shapes(file: IO[bytes]) -> dict[str, Shape]:
    """Read the heads of all arrays of a file, so that none is loaded that cannot be.

    Raises:
        ValueError: an array holds objects, or is not as large as it says.
    """
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > LIMIT:
            raise ValueError(f"it unpacks to more than {LIMIT:,} bytes")
        return {
            member.filename.removesuffix(".npy"): _shape(archive, member)
            for member in archive.infolist()
        }


def _shape(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Shape:
    """Read the shape of one array and hold it against the bytes there are."""
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError(f"array {name!r} has a head of an unknown version")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        if dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects, which are never loaded")
        announced = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or announced != member.file_size - stream.tell():
            raise ValueError(f"array {name!r} announces {shape} and has another size")
    return tuple(shape)


def _what_is_wrong(arrays: Arrays, num_classes: int) -> str | None:
    """Name the first thing that keeps these arrays from being a split."""
    for key in ("images", "labels"):
        if key not in arrays:
            return f"it has no array {key!r}"
    images, labels = arrays["images"], arrays["labels"]
    if not _are_pictures(images):
        return f"images are {images.dtype} {images.shape}, not uint8 (n, height, width[, 3])"
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        return f"labels are {labels.dtype} {labels.shape}, not integers for {len(images)} images"
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= num_classes:
        return f"labels are not within 0..{num_classes - 1}, or there are none"
    return _what_is_wrong_beside(arrays)


def _are_pictures(images: NDArray[Any]) -> bool:
    coloured = images.ndim == 4 and images.shape[-1] == 3
    return images.dtype == np.uint8 and (coloured or images.ndim == 3) and 0 not in images.shape[1:]


def _what_is_wrong_beside(arrays: Arrays) -> str | None:
    """Check the arrays that a split may have besides its pictures."""
    size = arrays.get("official_size", np.array(1))
    if size.shape != () or size.dtype.kind not in "iu" or size < 1:
        return "official_size is not a whole number above 0"
    classes = arrays.get("classes", np.array([""]))
    if classes.ndim != 1 or classes.dtype.kind != "U":
        return f"classes are {classes.dtype} {classes.shape}, not a list of names"
    return None
