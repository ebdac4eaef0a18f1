"""Benchmarks that lie on the disk in the prepared format: their parts, and loading all of them."""

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dapperfl.data.benchmark import Benchmark, Domain
from dapperfl.data.prepared import (
    SPLITS,
    data_root,
    official_size,
    read_prepared,
    split_path,
    to_examples,
)
from dapperfl.errors import DataError

SIDE = 32  # pixels of a picture in training
# The statistics of ImageNet, which the paper's code uses for both benchmarks.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a prepared benchmark consists of."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    fraction: float  # of a domain's official size, for each client
    flip: bool  # whether a mirrored picture keeps its label
    repair_labels: bool = False  # whether protocol `paper` gives every client every label

    def folder(self, root: Path | None) -> Path:
        """Return the folder of its files."""
        return data_root(root) / self.name

    def parts(self) -> Iterator[tuple[str, str]]:
        """Go through its domains and splits."""
        return itertools.product(self.domains, SPLITS)

    def load(self, root: Path | None) -> Benchmark:
        """Read all of it, as bytes in the training size.

        Raises:
            DataError: a file is missing or damaged.
        """
        self._require_all(root)
        return Benchmark(
            name=self.name,
            domains={domain: self._domain(root, domain) for domain in self.domains},
            classes=self.classes,
            mean=MEAN,
            std=STD,
            fraction=self.fraction,
            flip=self.flip,
            repair_labels=self.repair_labels,
        )

    def _domain(self, root: Path | None, name: str) -> Domain:
        count = len(self.classes)
        train, test = (
            read_prepared(
                split_path(self.folder(root), name, split), num_classes=count, classes=self.classes
            )
            for split in SPLITS
        )
        return Domain(
            train=to_examples(train, side=SIDE),
            test=to_examples(test, side=SIDE),
            official_size=official_size(train),
        )

    def _require_all(self, root: Path | None) -> None:
        """Name every missing file, and the commands that make them, before anything is read."""
        folder = self.folder(root)
        paths = [split_path(folder, *part) for part in self.parts()]
        if missing := [str(path) for path in paths if not path.is_file()]:
            where = "" if root is None else f" --root {shlex.quote(str(root))}"
            raise DataError(
                f"{self.name} is not complete, {len(missing)} of {len(paths)} files are missing: "
                f"{', '.join(missing)}. To make them: dapperfl data prepare {self.name} "
                f"--from DIR{where} (DIR has the official files), or dapperfl data fetch "
                f"{self.name}{where}"
            )
