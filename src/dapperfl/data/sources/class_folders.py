"""Image folders: one folder per class, its pictures in sorted order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dapperfl.data.sources.found import Pictures, Tick
from dapperfl.data.sources.image_files import image_files, read_images
from dapperfl.data.sources.survey import Survey, plain
from dapperfl.errors import DataError

SIDE = 32  # pixels of a prepared picture


@dataclass(frozen=True)
class Labelled:
    """Image files and their labels, in the order of an image folder."""

    files: tuple[Path, ...]
    labels: tuple[int, ...]

    def where(self, keep: Callable[[int], bool]) -> "Labelled":
        """Return those whose position is kept."""
        chosen = [place for place in range(len(self.files)) if keep(place)]
        return Labelled(
            tuple(self.files[place] for place in chosen),
            tuple(self.labels[place] for place in chosen),
        )

    def read(self, tick: Tick) -> Pictures:
        """Decode them all."""
        images = read_images(self.files, SIDE, tick)
        return Pictures(images, np.array(self.labels, dtype=np.uint8))


def class_folders(
    survey: Survey, folder: Path, aliases: Mapping[str, int]
) -> dict[int, list[Path]]:
    """Find the folders of classes directly in a folder, by class.

    Args:
        survey: of the tree the folder is in.
        folder: where to look.
        aliases: the class of each name, in its plain form.
    """
    found: dict[int, list[Path]] = {}
    for path in survey.folders:
        if path.parent == folder and plain(path.name) in aliases:
            found.setdefault(aliases[plain(path.name)], []).append(path)
    return found


def label_files(
    survey: Survey, found: Mapping[int, Sequence[Path]], classes: Sequence[str]
) -> Labelled:
    """List the pictures of all classes.

    Raises:
        DataError: a class has no folder, more than one, or no picture.
    """
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folders = found[label]
        if len(folders) > 1:
            both = " and ".join(map(str, folders))
            raise DataError(f"{both} are both class {name}; remove or rename one")
        own = image_files(survey.inside(folders[0]))
        if not own:
            raise DataError(f"{folders[0]} holds no image")
        files += own
        labels += [label] * len(own)
    return Labelled(tuple(files), tuple(labels))
