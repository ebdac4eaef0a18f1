"""One look through a folder: its files and folders, and what must not be followed."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dapperfl.errors import DataError

LIMIT = 1_000_000  # entries; both benchmarks together have fewer than 20,000


@dataclass(frozen=True)
class Survey:
    """What lies in a folder, sorted, at any depth."""

    root: Path
    files: tuple[Path, ...]
    folders: tuple[Path, ...]
    refused: tuple[tuple[Path, str], ...] = ()  # links that leave the folder, closed folders

    def inside(self, folder: Path) -> list[Path]:
        """List the files under one folder, at any depth, in the order of an image folder.

        Raises:
            DataError: something in it may not be read, so the list would not be whole.
        """
        for path, why in self.refused:
            if path.is_relative_to(folder):
                raise DataError(f"{path} {why}")
        start = f"{folder}{os.sep}"  # texts, because there may be many thousand
        found = [path for path in self.files if str(path).startswith(start)]
        return sorted(found, key=lambda path: (str(path.parent), path.name))

    def named(self, names: Iterable[str]) -> list[Path]:
        """List the files with one of these names, whatever the case, the outermost first."""
        wanted = {name.lower() for name in names}
        found = [path for path in self.files if path.name.lower() in wanted]
        return sorted(found, key=lambda path: (len(path.parts), path))

    def below(self, path: Path) -> list[str]:
        """Return the plain names on the way from the root to a path, the root's own first."""
        return [plain(part) for part in (self.root.name, *path.relative_to(self.root).parts)]


def plain(name: str) -> str:
    """Return a name without its case and separators: `Back_Pack` and `backpack` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def survey(folder: Path) -> Survey:
    """Look through a folder, without following any link that leaves it.

    Raises:
        DataError: it is no folder, or has more entries than could be meant.
    """
    root = Path(os.path.realpath(folder))
    if not root.is_dir():
        raise DataError(f"{folder} is not a folder; name the one that holds the official files")
    files: list[Path] = []
    folders: list[Path] = [root]
    refused: list[tuple[Path, str]] = []
    for here in folders:  # grows while it is gone through
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            refused.append((here, f"cannot be opened ({error.strerror})"))
            continue
        for entry in entries:
            _sort_in(entry, root, (files, folders, refused))
        if len(files) + len(folders) > LIMIT:
            raise DataError(f"{folder} has more than {LIMIT:,} entries; name a folder further in")
    return Survey(root, tuple(files), tuple(folders), tuple(refused))


def _sort_in(
    entry: os.DirEntry[str],
    root: Path,
    into: tuple[list[Path], list[Path], list[tuple[Path, str]]],
) -> None:
    """Put one entry where it belongs; what is neither file nor folder (a pipe) belongs nowhere."""
    files, folders, refused = into
    path = Path(entry.path)
    if entry.is_symlink():
        if not Path(os.path.realpath(path)).is_relative_to(root):
            refused.append((path, f"is a link that leaves {root}; it is not followed"))
        elif path.is_file():  # unlike the entry's own, it bears a link to itself
            files.append(path)
    elif entry.is_dir():
        folders.append(path)
    elif entry.is_file():
        files.append(path)
