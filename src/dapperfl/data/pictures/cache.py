"""Decoded pictures in the user's cache, so that a second start is fast.

There is one file per tree and size. It says which files it was made from, with their sizes and
times, and is made again as soon as one of them differs.
"""

import hashlib
import logging
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dapperfl.data.pictures.decoding import Decoded, decode_all
from dapperfl.data.prepared import data_root, write_prepared
from dapperfl.errors import DataError

log = logging.getLogger(__name__)

VERSION = 2  # of the decoding: raise it when pictures come out differently


def read_all(root: Path, paths: Sequence[Path], side: int) -> Decoded:
    """Decode the pictures of a tree, or take them from the cache if none has changed."""
    where = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    path = data_root(None) / "folder" / f"{where}-{side}.npz"
    marks = _fingerprint(root, paths)
    kept = _cached(path, marks, (len(paths), side, side, 3))
    if kept is not None:
        return kept
    log.info("reading %d pictures of %s", len(paths), root)
    decoded = decode_all(paths, side)
    try:
        reasons = np.array(decoded.reasons, dtype=np.str_)
        arrays = {"images": decoded.images, "reasons": reasons, "marks": np.array(marks)}
        write_prepared(path, arrays)
    except OSError as error:
        log.warning("pictures are decoded anew each time, %s cannot be written: %s", path, error)
    return decoded


def _fingerprint(root: Path, paths: Sequence[Path]) -> str:
    """Name the state of the files without reading them."""
    digest = hashlib.sha256(str(VERSION).encode())
    for path in paths:
        try:
            facts = path.stat()
        except OSError as error:
            raise DataError(f"{path} has gone while it was looked at: {error.strerror}") from error
        name = os.fsencode(path.relative_to(root))
        digest.update(b"%d:%b:%d:%d," % (len(name), name, facts.st_size, facts.st_mtime_ns))
    return digest.hexdigest()


def _cached(path: Path, marks: str, shape: tuple[int, ...]) -> Decoded | None:
    """Return what the cache holds if it is whole and of these very files."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if str(stored["marks"]) != marks:
                return None
            images, reasons = stored["images"], stored["reasons"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        log.warning("%s cannot be read (%s): its pictures are decoded again", path, error)
        return None
    if images.shape != shape or images.dtype != np.uint8 or reasons.shape != shape[:1]:
        return None
    return Decoded(images, tuple(map(str, reasons)))
