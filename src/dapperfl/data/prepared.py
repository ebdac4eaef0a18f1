"""The prepared format: one .npz of bytes per domain and split, `<benchmark>/<domain>_<split>.npz`.

Files are written whole or not at all, and nothing read from them is trusted before it is checked;
nothing is ever unpickled.
"""

import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dapperfl.data.benchmark import Examples
from dapperfl.errors import DataError

Arrays = Mapping[str, NDArray[Any]]


def data_root(root: Path | None) -> Path:
    """Say where prepared data lives: the given root, DAPPERFL_DATA, or the user's cache folder."""
    if root is not None:
        return root
    if named := os.environ.get("DAPPERFL_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "dapperfl"


def write_prepared(path: Path, arrays: Arrays) -> None:
    """Write one split so that no reader ever sees half of it.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    named: dict[str, Any] = dict(arrays)
    part = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.part")  # two writers never collide
    try:
        with part.open("xb") as file:
            np.savez(file, **named)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_prepared(path: Path, *, num_classes: int) -> Arrays:
    """Read one split back and check it.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        DataError: it is damaged, or does not hold labelled RGB images.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it has to be prepared again") from None
    if wrong := _what_is_wrong(arrays, num_classes):
        raise DataError(f"{path}: {wrong}; it has to be prepared again")
    return arrays


def to_examples(arrays: Arrays) -> Examples:
    """Turn the arrays of one split into tensors, channels first."""
    images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).contiguous()
    return Examples(images, torch.from_numpy(arrays["labels"].astype(np.int64)))


def _what_is_wrong(arrays: Arrays, num_classes: int) -> str | None:
    """Name the first thing that keeps these arrays from being a split."""
    for key in ("images", "labels", "official_size"):
        if key not in arrays:
            return f"it has no array {key!r}"
    images, labels = arrays["images"], arrays["labels"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        return f"images are {images.dtype} {images.shape}, not uint8 (n, height, width, 3)"
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        return f"labels are {labels.dtype} {labels.shape}, not uint8 for {len(images)} images"
    if len(labels) == 0 or labels.max() >= num_classes:
        return f"labels are not within 0..{num_classes - 1}, or there are none"
    if arrays["official_size"].shape != () or arrays["official_size"].dtype.kind not in "iu":
        return "official_size is not a whole number"
    return None
