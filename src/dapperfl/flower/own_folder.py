"""A device's own pictures, `<folder>/<class>/<image>`, as the examples of a run."""

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Examples
from dapperfl.data.partition.validation import set_aside
from dapperfl.data.pictures.cache import read_all
from dapperfl.data.pictures.tree import find_labelled, folder_name, some
from dapperfl.errors import DataError
from dapperfl.lab.folder import intact, read_json, write_json

_NAMES = {False: "trained", True: "aside"}  # of the sides, in the file
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
    number = {folder_name(label): index for index, label in enumerate(classes)}
    unknown = sorted({each.label for each in found} - number.keys())
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
    labels = [number[found[place].label] for place in good]
    return Examples(images, torch.tensor(labels))


def split(examples: Examples, share: float, seed: int, device: int) -> tuple[Examples, Examples]:
    """Return what the device trains on and what it keeps aside to measure models with."""
    return set_aside(examples, share, generator(seed, "aside", device))


@dataclass(frozen=True)
class Sides:
    """Which pictures a device keeps aside in a run, noted in a file of its own.

    A folder may change while the run goes on. A picture that was trained on must not be measured
    on later: every one stays on its side, and new ones are drawn.
    """

    path: Path
    share: float

    def split(self, examples: Examples, seed: int, device: int) -> tuple[Examples, Examples]:
        """Return what the device trains on and what it keeps aside, as `split` does at first.

        Raises:
            CheckpointError: What is noted cannot be read.
            OSError: It cannot be noted.
        """
        keys, before = _keys(examples), self._read()
        known = before or self._first(examples, seed, device)
        sides = {key: known.get(key, _drawn(key, self.share)) for key in keys}
        if all(sides.values()):  # all others are gone, and one cannot train on nothing
            sides = self._first(examples, seed, device)
        if not sides.items() <= before.items():
            self._write({**before, **sides})
        aside = torch.tensor([sides[key] for key in keys])
        kept, apart = (~aside).nonzero().flatten(), aside.nonzero().flatten()
        return examples.pick(kept), examples.pick(apart)

    def _first(self, examples: Examples, seed: int, device: int) -> dict[str, bool]:
        marked = Examples(torch.arange(len(examples)), examples.labels)
        _, aside = split(marked, self.share, seed, device)
        apart = set(aside.images.tolist())
        return {key: place in apart for place, key in enumerate(_keys(examples))}

    def _read(self) -> dict[str, bool]:
        """Return the sides of all pictures so far; none if another share was kept aside."""
        if not self.path.exists():
            return {}
        with intact(self.path, "remove it; pictures are then drawn anew"):
            stored = read_json(self.path)
            if stored["share"] != self.share:
                return {}
            return {key: side for side, name in _NAMES.items() for key in stored[name]}

    def _write(self, sides: dict[str, bool]) -> None:
        parts = {
            name: [key for key, aside in sides.items() if aside is side]
            for side, name in _NAMES.items()
        }
        write_json(self.path, {"share": self.share, **parts})


def _keys(examples: Examples) -> list[str]:
    """Name pictures by what they show; copies of one are numbered."""
    seen: Counter[str] = Counter()
    keys = []
    for image, label in zip(examples.images, examples.labels.tolist(), strict=True):
        key = hashlib.sha256(b"%d:%b" % (label, image.numpy().tobytes())).hexdigest()[:16]
        keys.append(f"{key}-{seen[key]}")
        seen[key] += 1
    return keys


def _drawn(key: str, share: float) -> bool:
    """Draw the side of a picture that is new."""
    return int(key[:8], 16) < share * 16**8
