"""What prepared data there is, and what is missing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dapperfl.data.prepare import LAYOUTS
from dapperfl.data.prepared import count_prepared, split_path
from dapperfl.errors import DataError


@dataclass(frozen=True)
class Item:
    """One split of a benchmark, there or not."""

    benchmark: str
    domain: str
    split: str
    path: Path
    images: int = 0
    bytes: int = 0
    trouble: str = ""  # "missing", or what is wrong with the file


def inventory(root: Path | None) -> Iterator[Item]:
    """Go through all splits of all prepared benchmarks."""
    for layout in LAYOUTS.values():
        for domain, split in layout.parts():
            path = split_path(layout.folder(root), domain, split)
            try:
                images, size, trouble = count_prepared(path), path.stat().st_size, ""
            except (FileNotFoundError, NotADirectoryError):
                images, size, trouble = 0, 0, "missing"
            except DataError as error:
                images, size, trouble = 0, 0, str(error)
            yield Item(layout.name, domain, split, path, images, size, trouble)
