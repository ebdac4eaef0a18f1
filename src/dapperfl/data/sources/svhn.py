"""SVHN's cropped digits as they are published: train_32x32.mat and test_32x32.mat."""

from functools import partial
from pathlib import Path

import numpy as np

from dapperfl.data.sources.found import Found, Pictures, Tick, label_bytes
from dapperfl.data.sources.matlab import read_matlab
from dapperfl.data.sources.survey import Survey
from dapperfl.errors import DataError


def wanted(split: str) -> str:
    """Say which file is looked for."""
    return f"{split}_32x32.mat"


def find(survey: Survey, split: str) -> Found | None:
    """Find the file of a split."""
    for path in survey.named([wanted(split)]):
        return Found((path,), partial(_read, path))
    return None


def _read(path: Path, tick: Tick) -> Pictures:
    arrays = read_matlab(path, ("X", "y"))
    pixels, digits = arrays["X"], arrays["y"]
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise DataError(
            f"{path}: X is {pixels.dtype} {pixels.shape}, not uint8 (32, 32, 3, n); "
            "it is another file"
        )
    if digits.size != pixels.shape[3] or digits.size == 0:
        raise DataError(f"{path} has {pixels.shape[3]} pictures and {digits.size} labels")
    if digits.dtype.kind not in "iu" and not (digits == np.floor(digits)).all():
        raise DataError(f"{path}: y holds labels that are no whole numbers")
    tick(digits.size, digits.size)
    flat = digits.ravel()
    return Pictures(
        np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)),
        label_bytes(np.where(flat == 10, 0, flat), classes=10, where=path),  # a zero is a ten there
    )
