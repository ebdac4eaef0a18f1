"""From official files to the prepared format, split by split.

One missing or damaged split does not stop the others. What is finished is known by its manifest
and not made again, so that an interrupted call is simply repeated.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from dapperfl.data.benchmarks import digits, office_caltech
from dapperfl.data.catalogue import Origin, origins
from dapperfl.data.layout import Layout
from dapperfl.data.manifest import Entry, digest, fingerprint, read_manifest, write_manifest
from dapperfl.data.prepared import read_prepared, split_path, write_prepared
from dapperfl.data.sources import mnist, office, svhn, syn, usps
from dapperfl.data.sources.found import Found, Pictures
from dapperfl.data.sources.survey import Survey, survey
from dapperfl.errors import DataError

Progress = Callable[[str, int, int], None]  # what is worked on, how much is done, of how much
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".rar", ".7z")
_HINTS = 3  # of each kind
_ABANDONED = 3600  # seconds since the last write to a file that nobody is writing any more


@dataclass(frozen=True)
class Reader:
    """How one domain is found among official files."""

    find: Callable[[Survey, str], Found | None]
    wanted: Callable[[str], str]


LAYOUTS: Mapping[str, Layout] = {
    module.LAYOUT.name: module.LAYOUT for module in (digits, office_caltech)
}
READERS: Mapping[str, Mapping[str, Reader]] = {
    "digits": {
        "mnist": Reader(mnist.find, mnist.wanted),
        "usps": Reader(usps.find, usps.wanted),
        "svhn": Reader(svhn.find, svhn.wanted),
        "syn": Reader(syn.find, syn.wanted),
    },
    "office_caltech": {
        domain: Reader(partial(office.find, domain), partial(office.wanted, domain))
        for domain in office.DOMAINS
    },
}


@dataclass(frozen=True)
class Outcome:
    """What became of one split."""

    domain: str
    split: str
    state: Literal["written", "kept", "missing", "failed"]
    images: int = 0
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """What became of all splits of a benchmark."""

    folder: Path
    outcomes: tuple[Outcome, ...]
    advice: tuple[str, ...] = ()  # how to get what is missing
    troubles: tuple[str, ...] = ()  # downloads that failed

    @property
    def complete(self) -> bool:
        """Tell whether the benchmark can be loaded."""
        return all(outcome.state in ("written", "kept") for outcome in self.outcomes)


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def prepare(
    name: str, source: Path, *, root: Path | None = None, progress: Progress = silent
) -> Report:
    """Prepare all of a benchmark that is found in a folder.

    Args:
        name: of the benchmark.
        source: the folder with the official files, at any depth.
        root: of prepared data; None for the default one.
        progress: told what is worked on, how much is done, and of how much (0: not known).

    Raises:
        ConfigError: there is no such benchmark.
        DataError: the source is no folder.
    """
    known = origins(name)
    layout = LAYOUTS[name]
    seen = survey(source)
    _sweep(layout.folder(root))
    work = [
        _Split(layout, root, seen, known[domain], READERS[name][domain], domain, split)
        for domain, split in layout.parts()
    ]
    outcomes = tuple(split.outcome(progress) for split in work)
    missing = {outcome.domain for outcome in outcomes if outcome.state == "missing"}
    advice = [
        f"{domain}: {known[domain].by_hand}" for domain in layout.domains if domain in missing
    ]
    hints = _hints(seen) if missing else []
    return Report(layout.folder(root), outcomes, tuple(advice + hints))


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed have left, but not what one may be writing now."""
    for part in folder.glob(".*.part"):
        if time.time() - part.stat().st_mtime > _ABANDONED:
            part.unlink(missing_ok=True)


def _hints(seen: Survey) -> list[str]:
    """Point at what might explain that something was not found."""
    links = [f"{path} {why}" for path, why in seen.refused]
    archives = [
        f"{path} is an archive: unpack it first"
        for path in seen.files
        if path.name.lower().endswith(_ARCHIVES)
    ]
    return links[:_HINTS] + archives[:_HINTS]


@dataclass(frozen=True)
class _Split:
    """One split that is to be prepared."""

    layout: Layout
    root: Path | None
    survey: Survey
    origin: Origin
    reader: Reader
    domain: str
    split: str

    @property
    def path(self) -> Path:
        return split_path(self.layout.folder(self.root), self.domain, self.split)

    def outcome(self, progress: Progress) -> Outcome:
        """Prepare it, unless it is finished; say what became of it."""
        try:
            found = self.reader.find(self.survey, self.split)
            return self._without_source() if found is None else self._from(found, progress)
        except DataError as error:
            return self._outcome("failed", remark=str(error))

    def _outcome(
        self,
        state: Literal["written", "kept", "missing", "failed"],
        images: int = 0,
        remark: str = "",
    ) -> Outcome:
        return Outcome(self.domain, self.split, state, images, remark)

    def _without_source(self) -> Outcome:
        """Keep what was prepared before; else say where it was looked for."""
        if self.path.is_file():
            arrays = read_prepared(
                self.path, num_classes=len(self.layout.classes), classes=self.layout.classes
            )
            return self._outcome("kept", len(arrays["labels"]), "its source is not here")
        looked = f"looked for {self.reader.wanted(self.split)} in {self.survey.root} and below"
        return self._outcome("missing", remark=looked)

    def _from(self, found: Found, progress: Progress) -> Outcome:
        """Make it from its source, or keep what was made from the very same source."""
        what = f"{self.domain} {self.split}"
        progress(what, 0, 0)
        folder = self.path.parent
        entries = read_manifest(folder)
        sources = fingerprint(found.files, self.survey.root)
        before = entries.get(self.path.name)
        if before and before.sources == sources and self._is_whole(before):
            return self._outcome("kept", before.images)
        pictures = found.read(partial(progress, what))
        per_class = np.bincount(pictures.labels, minlength=len(self.layout.classes)).tolist()
        write_prepared(self.path, self._arrays(pictures))
        entry = Entry(digest(self.path), len(pictures.labels), tuple(per_class), sources)
        write_manifest(folder, entries | {self.path.name: entry})
        remarks = [found.remark, self._unofficial(entry)]
        return self._outcome("written", entry.images, "; ".join(filter(None, remarks)))

    def _is_whole(self, entry: Entry) -> bool:
        return self.path.is_file() and digest(self.path) == entry.sha256

    def _arrays(self, pictures: Pictures) -> dict[str, np.ndarray]:
        return {
            "images": pictures.images,
            "labels": pictures.labels,
            "official_size": np.array(len(pictures.labels)),
            "classes": np.array(self.layout.classes),
        }

    def _unofficial(self, entry: Entry) -> str:
        """Say in what the pictures differ from the official ones, as far as those are known."""
        official = self.origin.counts.get(self.split)
        if official is None or official == entry.per_class:
            return ""
        if entry.images != sum(official):
            return f"the official split has {sum(official):,} pictures: is the source complete?"
        return "its classes are not as frequent as in the official split: is it another data set?"
