"""A device's own pictures, `<folder>/<class>/<image>`, as the examples of a run."""

import logging
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import torch

from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Examples
from dapperfl.data.partition.validation import set_aside
from dapperfl.data.pictures.cache import read_all
from dapperfl.data.pictures.tree import find_labelled, some
from dapperfl.errors import DataError

logger = logging.getLogger(__name__)


def load_folder(folder: Path, classes: Sequence[str], side: int) -> Examples:
    """Read all pictures of the run's classes.

    Args:
        folder: Has one folder for each class, which holds its pictures.
        classes: The classes of the run, in the order of its labels.
        side: Pixels of the squares that pictures are squashed to.

    Raises:
        DataError: There are no such pictures, or folders that are no class.
    """
    found = find_labelled(folder)
    number = {_same(label): index for index, label in enumerate(classes)}
    unknown = sorted({each.label for each in found if _same(each.label) not in number})
    if unknown:
        raise DataError(
            f"{folder} has folders that are no class of this run: {some(unknown)}; its classes are "
            f"{some(list(classes))}"
        )
    read = read_all(folder, [picture.path for picture in found], side)
    good = [place for place, reason in enumerate(read.reasons) if not reason]
    if len(good) < len(found):
        bad = [f"{found[n].path.name} ({why})" for n, why in enumerate(read.reasons) if why]
        logger.warning("pictures that cannot be read are skipped: %s", some(bad))
    if not good:
        raise DataError(f"{folder} has no picture that can be read; expected <class>/<image> in it")
    images = torch.from_numpy(read.images[good]).permute(0, 3, 1, 2).contiguous()
    labels = [number[_same(found[place].label)] for place in good]
    return Examples(images, torch.tensor(labels))


def _same(label: str) -> str:
    """Write a name in one way: some systems store an accent apart from its letter."""
    return unicodedata.normalize("NFC", label)


def split(examples: Examples, share: float, seed: int, device: int) -> tuple[Examples, Examples]:
    """Return what the device trains on and what it keeps aside to measure models with."""
    return set_aside(examples, share, generator(seed, "aside", device))
