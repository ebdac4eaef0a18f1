"""MNIST as it is published: four idx files, plain or .gz."""

from functools import partial
from pathlib import Path

from dapperfl.data.sources.found import Found, Pictures, Tick, label_bytes
from dapperfl.data.sources.idx import read_idx
from dapperfl.data.sources.survey import Survey
from dapperfl.errors import DataError

_PREFIX = {"train": "train", "test": "t10k"}
# Other data sets that carry the same file names, and often lie beside MNIST.
_OTHERS = ("fashion", "kmnist", "emnist", "qmnist", "kuzushiji", "mnistm", "medmnist", "mnistc")


def wanted(split: str) -> str:
    """Say which files are looked for."""
    prefix = _PREFIX[split]
    return f"{prefix}-images-idx3-ubyte and {prefix}-labels-idx1-ubyte, plain or .gz"


def find(survey: Survey, split: str) -> Found | None:
    """Find the pictures of a split and, beside them, their labels."""
    own = [path for path in survey.named(_names(split, "images", 3)) if _is_mnist(survey, path)]
    for images in own:
        beside = {path for path in survey.named(_names(split, "labels", 1))}
        labels = sorted(path for path in beside if path.parent == images.parent)
        if labels:
            return Found((images, labels[0]), partial(_read, images, labels[0]))
    return None


def _names(split: str, kind: str, axes: int) -> list[str]:
    """List the names under which a file is known."""
    stems = [f"{_PREFIX[split]}-{kind}{dot}idx{axes}-ubyte" for dot in "-."]
    return [stem + ending for stem in stems for ending in ("", ".gz")]


def _is_mnist(survey: Survey, path: Path) -> bool:
    return not any(other in part for part in survey.below(path) for other in _OTHERS)


def _read(images: Path, labels: Path, tick: Tick) -> Pictures:
    pixels, digits = read_idx(images, axes=3), read_idx(labels, axes=1)
    if len(pixels) != len(digits):
        raise DataError(
            f"{images} has {len(pixels):,} pictures and {labels} {len(digits):,} labels; "
            "they do not belong together"
        )
    if pixels.shape[1:] != (28, 28):
        raise DataError(f"{images} has pictures of {pixels.shape[1:]}, MNIST's are (28, 28)")
    tick(len(pixels), len(pixels))
    return Pictures(pixels, label_bytes(digits, classes=10, where=labels))
