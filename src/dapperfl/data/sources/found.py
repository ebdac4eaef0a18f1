"""What a reader of official files hands over: which files it found, and how to read them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapperfl.errors import DataError

Tick = Callable[[int, int], None]  # how many pictures are done, of how many (0: not known)


@dataclass(frozen=True)
class Pictures:
    """Labelled pictures in their native size."""

    images: NDArray[np.uint8]  # (n, height, width) or (n, height, width, 3)
    labels: NDArray[np.uint8]  # (n,)


@dataclass(frozen=True)
class Found:
    """One split of one domain as it lies on the disk."""

    files: tuple[Path, ...]  # all that it is made from
    read: Callable[[Tick], Pictures]
    remark: str = ""  # what the user should know, for instance what was left out


def label_bytes(labels: NDArray[Any], *, classes: int, where: Path) -> NDArray[np.uint8]:
    """Return labels as bytes, provided that each is one of the classes."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataError(
            f"{where}: label {labels[wrong[0]]} of picture {wrong[0]} is not within "
            f"0..{classes - 1}; this is another file, or a damaged one"
        )
    return labels.astype(np.uint8)
