"""USPS as it is published: LIBSVM's usps.bz2, or zip.train of The Elements of Statistical Learning.

Both are text with one picture of 16 × 16 in a line and pixels in [-1, 1].
"""

import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dapperfl.data.sources.found import Found, Pictures, Tick
from dapperfl.data.sources.survey import Survey
from dapperfl.data.sources.unpacking import read_text
from dapperfl.errors import DataError

SIDE = 16
LIMIT = 20_000  # pictures; there are 9,298 in all
LIBSVM: Mapping[str, tuple[str, ...]] = {
    "train": ("usps.bz2", "usps", "usps.train.bz2"),
    "test": ("usps.t.bz2", "usps.t", "usps.test.bz2"),
}
ZIP: Mapping[str, tuple[str, ...]] = {
    "train": ("zip.train.gz", "zip.train"),
    "test": ("zip.test.gz", "zip.test"),
}
_STEP = 500  # lines between two reports of progress
Row = tuple[int, NDArray[np.float32]]


def wanted(split: str) -> str:
    """Say which files are looked for."""
    return f"{LIBSVM[split][0]} (LIBSVM) or {ZIP[split][0]} (Elements of Statistical Learning)"


def find(survey: Survey, split: str) -> Found | None:
    """Find a split in either form; the LIBSVM one is preferred, the pictures are the same."""
    for names, parse in ((LIBSVM, libsvm_row), (ZIP, zip_row)):
        for path in survey.named(names[split]):
            return Found((path,), partial(_read, path, parse))
    return None


def libsvm_row(line: str) -> Row:
    """Read `label index:value …`, whose labels are 1 to 10 and whose indices start at 1.

    Raises:
        ValueError: it is not such a line.
    """
    label, *entries = line.split()
    pixels = np.zeros(SIDE * SIDE, dtype=np.float32)  # what is not mentioned is 0
    last = 0
    for entry in entries:
        index, _, value = entry.partition(":")
        place = int(index)
        if not last < place <= SIDE * SIDE:
            raise ValueError(f"pixel {place} after pixel {last}, of {SIDE * SIDE}")
        pixels[place - 1] = float(value)
        last = place
    return _whole(label) - 1, pixels


def zip_row(line: str) -> Row:
    """Read `label value …`, whose labels are the digits.

    Raises:
        ValueError: it is not such a line.
    """
    label, *values = line.split()
    if len(values) != SIDE * SIDE:
        raise ValueError(f"{len(values)} pixels instead of {SIDE * SIDE}")
    return _whole(label), np.array(values, dtype=np.float32)


def _whole(text: str) -> int:
    number = float(text)
    if not number.is_integer():
        raise ValueError(f"label {text} is no whole number")
    return int(number)


def _rows(path: Path, text: str, parse: Callable[[str], Row]) -> Iterator[Row]:
    """Read line after line; the first wrong one is named."""
    for number, line in enumerate(io.StringIO(text), start=1):
        if not line.strip():
            continue
        try:
            label, pixels = parse(line)
            if not 0 <= label <= 9:
                raise ValueError(f"the digit {label}")
            # Not-a-number fails every comparison, so it is caught as well.
            if not (np.abs(pixels) <= 1).all():
                raise ValueError("a pixel is outside [-1, 1]")
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}, line {number}: {error}; it is not a USPS file") from None
        yield label, pixels


def _read(path: Path, parse: Callable[[str], Row], tick: Tick) -> Pictures:
    labels, images = [], []
    for label, pixels in _rows(path, read_text(path), parse):
        labels.append(label)
        images.append(((pixels + 1) / 2 * 255).astype(np.uint8))  # rounds down, as torchvision
        if len(labels) > LIMIT:
            raise DataError(f"{path} has more than {LIMIT:,} pictures; this is not USPS")
        if len(labels) % _STEP == 0:
            tick(len(labels), 0)
    if not labels:
        raise DataError(f"{path} is empty; get it again")
    return Pictures(np.stack(images).reshape(-1, SIDE, SIDE), np.array(labels, dtype=np.uint8))
