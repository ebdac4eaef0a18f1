"""folder: your own pictures, `<domain>/<class>/<image>`, as a benchmark.

Without `train` and `test` folders a share of every class is drawn for the test. The draw depends
on the names of the class's files and on `split_seed`, not on the run's seed: runs with several
seeds are tested on the same pictures.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import torch

from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.data.pictures.cache import read_all
from dapperfl.data.pictures.decoding import Decoded
from dapperfl.data.pictures.tree import Picture, find_pictures, listing_mark, some
from dapperfl.errors import ConfigError, DataError

log = logging.getLogger(__name__)

DARK = 16  # of 256 levels: as bright as 12 bits get in a file of 16


def load(
    root: Path | None,
    *,
    size: Annotated[int, "pixels of a side, 1 to 1024; pictures are squashed to squares"] = 32,
    test_fraction: Annotated[
        float, "share of each class for the test, unless test/ exists; above 0, below 1"
    ] = 0.2,
    split_seed: Annotated[int, "draws the test pictures"] = 0,
    flip: Annotated[bool, "whether a mirrored picture keeps its label"] = False,
) -> Benchmark:
    """Read a tree of pictures; `data.root` is its folder."""
    if root is None:
        raise ConfigError(
            "the benchmark folder needs a folder: --set data.root=DIR, or --root DIR of data show"
        )
    if not 1 <= size <= 1024:
        raise ConfigError(f"data.size = {size}: expected at least 1 and at most 1024")
    if not 0 < test_fraction < 1:
        raise ConfigError(f"data.test_fraction = {test_fraction}: expected above 0 and below 1")
    found = find_pictures(root)
    read = read_all(root, [picture.path for picture in found], size)
    _report_unreadable(root, found, read)
    _report_dark(found, read)
    stock = _Stock(found, read)
    splits = {name: stock.split(name, test_fraction, split_seed) for name in stock.domains()}
    _report_repeated(root, found, read, list(splits.values()))
    domains = {name: stock.domain(split) for name, split in splits.items()}
    _report_unlearnable(stock.classes, domains)
    return Benchmark(
        name=root.resolve().name,
        domains=domains,
        classes=stock.classes,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        flip=flip,
    )


def files_mark(root: Path) -> str | None:
    """Name the files as they are now, so that a change shows; see `listing_mark`."""
    return listing_mark(root)


class _Split(NamedTuple):
    """Which pictures a domain is trained and tested on, by their places in the list of all."""

    train: list[int]
    test: list[int]


class _Stock:
    """The pictures that could be read, by domain and class."""

    def __init__(self, found: Sequence[Picture], read: Decoded) -> None:
        self.pictures = found
        self.images = torch.from_numpy(read.images).permute(0, 3, 1, 2)
        self.places: dict[str, dict[str, list[int]]] = {}
        for place, picture in enumerate(found):
            if not read.reasons[place]:
                own = self.places.setdefault(picture.domain, {}).setdefault(picture.label, [])
                own.append(place)
        self.classes = tuple(sorted({label for own in self.places.values() for label in own}))

    def domains(self) -> list[str]:
        """Return the domains in order, and say which classes they lack."""
        names = sorted(self.places)
        if len(names) == 1:
            log.warning("there is one domain only, %s: no shift between domains", names[0])
        for name in names:
            if lacking := [label for label in self.classes if label not in self.places[name]]:
                log.warning("domain %s has no pictures of %s", name, some(lacking))
        return names

    def split(self, name: str, test_fraction: float, seed: int) -> "_Split":
        """Divide a domain into its training and its test set, each sorted by class."""
        own = dict(sorted(self.places[name].items()))
        given = {self.pictures[place].split for places in own.values() for place in places}
        if "test" in given:
            train = [place for place in chain(*own.values()) if self._is_in_train(place)]
        else:
            if "train" in given:
                log.warning("domain %s has no test folder: a share of train is drawn", name)
            train = _draw(name, own, test_fraction, seed)
        kept = set(train)
        test = [place for place in chain(*own.values()) if place not in kept]
        for split, places in (("training", train), ("test", test)):
            if not places:
                raise DataError(f"domain {name} would have no {split} pictures; add some")
        return _Split(train, test)

    def domain(self, split: "_Split") -> Domain:
        """Return the pictures of a domain with their labels."""
        train, test = self._examples(split.train), self._examples(split.test)
        return Domain(train, test, len(train))

    def _is_in_train(self, place: int) -> bool:
        return self.pictures[place].split == "train"

    def _examples(self, places: Sequence[int]) -> Examples:
        number = {label: index for index, label in enumerate(self.classes)}
        labels = [number[self.pictures[place].label] for place in places]
        return Examples(self.images[list(places)].contiguous(), torch.tensor(labels))


def _draw(
    domain: str, own: Mapping[str, Sequence[int]], test_fraction: float, seed: int
) -> list[int]:
    """Draw the training pictures of a domain, class by class; a lone picture is one of them."""
    train: list[int] = []
    for label, places in own.items():
        order = torch.randperm(len(places), generator=generator(seed, "folder", domain, label))
        num_test = min(max(round(test_fraction * len(places)), 1), len(places) - 1)
        train += sorted(places[index] for index in order[num_test:].tolist())
    if lone := [label for label, places in own.items() if len(places) == 1]:
        log.warning("domain %s has one picture of %s: for training only", domain, some(lone))
    return train


def _report_unlearnable(classes: Sequence[str], domains: Mapping[str, Domain]) -> None:
    """Say where accuracy would mean little: one class to choose from, or one nobody ever saw."""
    if len(classes) == 1:
        log.warning("there is one class only, %s: every model is right", classes[0])
    taught = torch.cat([domain.train.labels for domain in domains.values()])
    counts = taught.bincount(minlength=len(classes)).tolist()
    if unseen := [label for label, count in zip(classes, counts, strict=True) if not count]:
        log.warning("no domain has training pictures of %s, only for the test", some(unseen))


def _report_repeated(
    root: Path, found: Sequence[Picture], read: Decoded, splits: Sequence[_Split]
) -> None:
    """Name test pictures that are training pictures too, in whatever domain: they are no test."""
    taught = {_mark(read, place) for split in splits for place in split.train}
    tested = [place for split in splits for place in split.test]
    if known := [place for place in tested if _mark(read, place) in taught]:
        named = some([str(found[place].path.relative_to(root)) for place in known])
        log.warning(
            "%d of %d test pictures are training pictures as well, to the last pixel, and easier "
            "for that: %s; remove one of the two",
            *(len(known), len(tested), named),
        )


def _mark(read: Decoded, place: int) -> bytes:
    return hashlib.blake2b(read.images[place], digest_size=16).digest()


def _report_unreadable(root: Path, found: Sequence[Picture], read: Decoded) -> None:
    """Name the pictures that are skipped; refuse a class of which most would be."""
    bad = {picture: reason for picture, reason in zip(found, read.reasons, strict=True) if reason}
    if not bad:
        return
    named = some([f"{p.path.relative_to(root)} ({why})" for p, why in bad.items()])
    worst = _mostly_unreadable(found, bad)
    if worst:
        raise DataError(
            f"more than half of {some(worst)} in {root} cannot be read: {named}; "
            "repair or remove these files"
        )
    log.warning("%d of %d pictures cannot be read and are skipped: %s", len(bad), len(found), named)


def _mostly_unreadable(found: Sequence[Picture], bad: Mapping[Picture, str]) -> list[str]:
    total = Counter(f"{picture.domain}/{picture.label}" for picture in found)
    lost = Counter(f"{picture.domain}/{picture.label}" for picture in bad)
    return [folder for folder, count in lost.items() if 2 * count > total[folder]]


def _report_dark(found: Sequence[Picture], read: Decoded) -> None:
    """Name the domains most of whose pictures come out nearly black."""
    peaks = read.images.max(axis=(1, 2, 3), initial=0)
    seen = [
        (picture, peaks[place]) for place, picture in enumerate(found) if not read.reasons[place]
    ]
    total = Counter(picture.domain for picture, _ in seen)
    dark = Counter(picture.domain for picture, peak in seen if peak < DARK)
    for domain, count in dark.items():
        if 2 * count > total[domain]:
            log.warning(
                "%d of %d pictures of domain %s are nearly black; if their files have 16 bits and "
                "use fewer, scale them up first",
                *(count, total[domain], domain),
            )
