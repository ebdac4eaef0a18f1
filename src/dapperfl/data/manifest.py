"""What was prepared, from what, and the SHA-256 of all of it: `<benchmark>/manifest.json`.

A prepared file counts as finished only if the manifest says so and its bytes agree.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dapperfl.data.prepared import written_whole

log = logging.getLogger(__name__)

NAME = "manifest.json"
FORMAT = 1
_LISTED = 4  # up to so many source files are listed one by one


@dataclass(frozen=True)
class Source:
    """A file, or a folder of many, that a prepared file was made from."""

    path: str  # from the folder that was searched
    files: int
    bytes: int
    sha256: str  # of the file; of a folder, of the names and sums of its files


@dataclass(frozen=True)
class Entry:
    """One prepared file."""

    sha256: str
    images: int
    per_class: tuple[int, ...]
    sources: tuple[Source, ...]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(files: Sequence[Path], root: Path) -> tuple[Source, ...]:
    """Sum up source files, so that a change of any of them is noticed later."""
    each = [
        Source(path.relative_to(root).as_posix(), 1, path.stat().st_size, digest(path))
        for path in files
    ]
    if len(each) <= _LISTED:
        return tuple(each)
    lines = "".join(f"{source.sha256}  {source.path}\n" for source in each)
    folder = Path(os.path.commonpath(files)).relative_to(root).as_posix()
    total = hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
    return (Source(folder, len(each), sum(source.bytes for source in each), total),)


def read_manifest(folder: Path) -> dict[str, Entry]:
    """Return what the manifest says of each file; nothing if it is missing or damaged."""
    path = folder / NAME
    try:
        stored = json.loads(path.read_text())
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']!r}")
        return {name: _entry(fields) for name, fields in stored["files"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is damaged (%r); what it described is prepared again", path, error)
        return {}


def _entry(fields: Mapping[str, Any]) -> Entry:
    sources = tuple(Source(**source) for source in fields["sources"])
    return Entry(fields["sha256"], fields["images"], tuple(fields["per_class"]), sources)


def write_manifest(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Write the manifest, whole or not at all."""
    files = {name: asdict(entry) for name, entry in sorted(entries.items())}
    text = json.dumps({"format": FORMAT, "benchmark": folder.name, "files": files}, indent=1)
    with written_whole(folder / NAME) as file:
        file.write(text.encode())
