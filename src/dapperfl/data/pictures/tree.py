"""A tree of pictures, `<domain>/<class>/<image>`, with or without train and test folders.

Links are followed as long as they stay within the tree; what is hidden does not exist.
"""

import hashlib
import logging
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dapperfl.data.sources.image_files import OTHERS, image_files
from dapperfl.errors import DataError

log = logging.getLogger(__name__)

NAMED = 5  # at most so many of a kind are named in a message
SPLITS = ("train", "test")
LAYOUT = (
    "expected <domain>/<class>/<image>, <domain>/train|test/<class>/<image> or "
    "train|test/<domain>/<class>/<image>"
)
_ALSO_ONE = f"{LAYOUT}, also where there is one domain only"
_LABELLED = "expected <class>/<image>"


@dataclass(frozen=True)
class Picture:
    """Where a picture is and what it shows."""

    path: Path
    domain: str
    label: str
    split: str | None = None  # None: neither train nor test, as the tree does not say


def find_pictures(root: Path) -> list[Picture]:
    """List all pictures of a tree, sorted by split, domain, class and name.

    Raises:
        DataError: there is no such tree, or it is laid out in another way.
    """
    if not root.is_dir():
        raise DataError(f"data.root = {root} is not a folder; {LAYOUT} in it")
    return _listed(root, _Tree.pictures, LAYOUT)


def find_labelled(folder: Path) -> list[Picture]:
    """List the pictures of one domain, `<class>/<image>`, sorted by class and name.

    Raises:
        DataError: there is no such folder, or there are no pictures in it.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; {_LABELLED} in it")
    return _listed(folder, _Tree.labelled, _LABELLED)


def _listed(
    root: Path, pictures: Callable[["_Tree"], Iterator[Picture]], layout: str
) -> list[Picture]:
    tree = _Tree(root, root.resolve())
    found = list(pictures(tree))
    if tree.skipped:
        log.warning("skipped in %s: %s", root, some(list(tree.skipped)))
    if not found:
        raise DataError(f"{root} has no pictures in it; {layout}{_deeper(tree, pictures)}")
    return found


def _deeper(tree: "_Tree", pictures: Callable[["_Tree"], Iterator[Picture]]) -> str:
    """Name the one folder that has such a tree in it, as archives are often unpacked."""
    whole = []
    for folder in tree.folders():
        with suppress(DataError):
            if any(True for _ in pictures(_Tree(folder, tree.real))):
                whole.append(folder)
    return f"; {whole[0]} looks like it: name that folder" if len(whole) == 1 else ""


def listing_mark(root: Path) -> str | None:
    """Name the pictures of a tree by their paths and sizes, unread; None if there is no tree.

    Times do not count: whoever unpacks an archive again has the same pictures.
    """
    if not root.is_dir():
        return None
    digest = hashlib.sha256()
    try:
        for picture in _Tree(root, root.resolve()).pictures():
            name, size = picture.path.relative_to(root), picture.path.stat().st_size
            digest.update(b"%b\0%d\0" % (os.fsencode(name), size))
    except (DataError, OSError) as error:  # no tree of pictures any more
        digest.update(str(error).encode(errors="replace"))
    return digest.hexdigest()


def folder_name(folder: str) -> str:
    """Write a name in one way: some systems store an accent apart from its letter."""
    return unicodedata.normalize("NFC", folder)


def some(names: Sequence[str]) -> str:
    """Write a list out, or its beginning and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class _Tree:
    root: Path
    real: Path  # the root without links
    skipped: dict[str, None] = field(default_factory=dict)  # in order, each once

    def pictures(self) -> Iterator[Picture]:
        self._refuse_pictures(self.root)
        splits = self._splits(self.root)
        if not splits:
            yield from self._domains(self.root, None)
        for split, folder in splits:
            self._refuse_pictures(folder)
            yield from self._domains(folder, split)

    def folders(self) -> list[Path]:
        """List the folders directly in the tree."""
        return self._folders(self.root)

    def labelled(self) -> Iterator[Picture]:
        """Yield the pictures of a folder that is one domain."""
        self._refuse_pictures(self.root, _LABELLED)
        yield from self._classes(self.root, folder_name(self.root.name), None)

    def _domains(self, folder: Path, split: str | None) -> Iterator[Picture]:
        domains = self._folders(folder)
        wrapping = self._wrapping(domains)
        for domain in domains:
            self._refuse_pictures(domain)
            if not self._folders(domain):
                self._skip(domain, "no class folders in it")
            name, splits = folder_name(domain.name), [] if split else self._splits(domain)
            if not splits:
                yield from self._classes(domain / wrapping, name, split)
            for inner, below in splits:
                self._refuse_pictures(below)
                yield from self._classes(below, name, inner)

    def _wrapping(self, domains: Sequence[Path]) -> str:
        """Return what lies between domains and classes: a folder of one name in all, or ""."""
        below = [self._folders(domain) for domain in domains]
        names = {tuple(folder.name for folder in folders) for folders in below}
        if len(domains) < 2 or len(names) > 1 or len(below[0]) != 1:
            return ""
        inner = [folder for [folder] in below]
        holding = [any(self._files(label) for label in self._folders(each)) for each in inner]
        return inner[0].name if all(holding) and not any(map(self._files, inner)) else ""

    def _classes(self, folder: Path, domain: str, split: str | None) -> Iterator[Picture]:
        for label in self._folders(folder):
            self._note_unread(label)
            for path in self._files(label):
                yield Picture(path, domain, folder_name(label.name), split)

    def _note_unread(self, label: Path) -> None:
        """Note what is in a class folder and is no picture that can be read."""
        deeper = self._folders(label)
        others = [
            Path(entry.path)
            for entry in self._entries(label)
            if Path(entry.name).suffix.lower() in OTHERS
        ]
        for path in deeper:
            self._skip(path, "a folder inside a class folder")
        for path in others:
            self._skip(path, "a format that is not read; convert it")
        if not deeper and not others and not self._files(label):
            self._skip(label, "no pictures in it")

    def _splits(self, folder: Path) -> list[tuple[str, Path]]:
        """Return the train and test folders of a folder, if it is divided into them.

        A class may be called "train" as well: then there are no folders in it.
        """
        below = self._folders(folder)
        splits = [
            (path.name.lower(), path)
            for path in below
            if path.name.lower() in SPLITS and self._folders(path)
        ]
        if splits:
            for path in sorted(set(below) - {split for _, split in splits}):
                self._skip(path, "a folder beside train and test")
        return splits

    def _refuse_pictures(self, folder: Path, layout: str = _ALSO_ONE) -> None:
        if files := self._files(folder):
            raise DataError(
                f"{folder} holds pictures that are in no class folder, such as {files[0].name}; "
                f"{layout}"
            )

    def _folders(self, folder: Path) -> list[Path]:
        found = [Path(entry.path) for entry in self._entries(folder) if entry.is_dir()]
        for path in found:
            if any("\ud800" <= letter <= "\udfff" for letter in path.name):  # bytes, no letters
                raise DataError(f"the folder {str(path)!a} has no name in UTF-8; rename it")
        return found

    def _files(self, folder: Path) -> list[Path]:
        return image_files(Path(entry.path) for entry in self._entries(folder) if entry.is_file())

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """List what is in a folder by name, less what is hidden or leads out of the tree."""
        try:
            with os.scandir(folder) as entries:
                seen = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error.strerror}") from error
        return [each for each in seen if not each.name.startswith(".") and self._is_inside(each)]

    def _is_inside(self, entry: os.DirEntry[str]) -> bool:
        if not entry.is_symlink():
            return True
        path = Path(entry.path)
        try:
            inside = path.resolve(strict=True).is_relative_to(self.real)
        except (OSError, RuntimeError):  # broken, or in a circle
            inside = False
        if not inside:
            self._skip(path, "a link that leads out of the tree, or nowhere")
        return inside

    def _skip(self, path: Path, why: str) -> None:
        self.skipped[f"{path.relative_to(self.root)} ({why})"] = None
