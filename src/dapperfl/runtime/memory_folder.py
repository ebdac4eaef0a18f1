"""The client memories of a run that can be killed at any moment.

`journal.jsonl` has a line for every memory that a checkpoint was the first to need, and is only
ever added to at its end; a checkpoint says how much of it belongs to it. So a checkpoint writes
what changed since the one before, however many devices there are. What lies behind the last
complete checkpoint, lines or files, counts for nothing.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapperfl.runtime.memory import LIMIT, Memories, Memory, MemoryStore, file_name, is_file_name

CHECKED = 2**30  # bytes compared with their SHA-256 when a run is continued; others when first read
SYNCS = 16  # at once: a disk settles many small files in hardly more time than one


@dataclass(frozen=True)
class Mark:
    """How much of the journal belongs to a checkpoint."""

    bytes: int
    sha256: str


class MemoryFolder(MemoryStore):
    """A store whose files stay after the process, as long as a kept checkpoint needs them."""

    def __init__(self, folder: Path, limit: int = LIMIT, device: str = "cpu") -> None:
        super().__init__(limit, device)
        self.folder = folder
        self._journal = folder / "journal.jsonl"
        self._begin(b"", {})
        self._needed: dict[int, Mapping[int, Memory]] = {}  # by the round of a kept checkpoint
        self._take_stock()

    def _take_stock(self) -> None:
        """Find the files that nothing refers to: a killed process left them, or an older run."""
        found = {path for path in self.folder.glob("*.safetensors") if is_file_name(path.name)}
        self._last_number = max([self._last_number, *map(_number, found)])
        # They go once a newer checkpoint is complete.
        self._garbage = found - set(self._files.values())

    def _begin(self, text: bytes, saved: dict[int, Memory]) -> None:
        self._hash, self._length, self._saved = hashlib.sha256(text), len(text), saved

    def save(self, memories: Memories) -> Mark:
        """Bring to the disk what is new; return what the checkpoint must remember."""
        new = [each for each in memories.kept.values() if self._saved.get(each.client) is not each]
        gone = sorted(self._saved.keys() - memories.kept.keys())
        if new or gone:
            sync(self.write(each) for each in new)
            text = "".join(f"{json.dumps(row)}\n" for row in _rows(new, gone)).encode()
            self._append(text)
            sync([self.folder])
            self._hash.update(text)
            self._length += len(text)
        self._saved = dict(memories.kept)
        return Mark(self._length, self._hash.hexdigest())

    def settle(self, round_num: int, kept: Iterable[int]) -> None:
        """Remove what no kept checkpoint needs, now that the one of this round is complete."""
        needed = {**self._needed, round_num: self._saved}
        self._needed = {each: needed[each] for each in kept if each in needed}
        del needed  # what only it referred to is garbage now
        garbage, self._garbage = self._garbage, set()
        for path in garbage:
            path.unlink(missing_ok=True)

    def restore(self, round_num: int, marks: Mapping[int, Mark]) -> Memories:
        """Return the memories of a checkpoint; the files of the others stay as well.

        Args:
            round_num: Which checkpoint.
            marks: What every checkpoint that is to be kept remembers, by its round.

        Raises:
            OSError: A file is missing or unreadable.
            ValueError: A file, or the journal, is not what was written.
        """
        text = self._journal.read_bytes() if self._journal.exists() else b""
        rows = _replay(text, marks[round_num])
        checked = self._check(rows.values())
        self._needed = {
            each: self._recall(_replay(text, mark), checked)
            for each, mark in marks.items()
            if each == round_num or _is_whole(text, mark)
        }
        self._take_stock()
        kept = dict(self._needed[round_num])
        self._begin(text[: marks[round_num].bytes], kept)
        return Memories(self, dict(kept))

    def _append(self, text: bytes) -> None:
        """Write behind what counts; a killed process may have left lines there."""
        with self._journal.open("ab") as file:
            file.truncate(self._length)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _check(self, rows: Iterable[Mapping[str, Any]]) -> set[int]:
        """Refuse missing and cut files, and other damage as far as that is quick.

        What was written last is looked at first: it is most in danger when a machine goes down.
        Returns the numbers of those whose contents were compared.
        """
        left, checked = CHECKED, set()
        for row in sorted(rows, key=lambda row: -int(row["number"])):
            path = self.folder / file_name(row["client"], row["number"])
            if path.stat().st_size != row["bytes"]:
                raise ValueError(f"{path} has another length than was written")
            left -= row["bytes"]
            if left >= 0:
                if digest(path) != row["sha256"]:
                    raise ValueError(f"{path} does not match its SHA-256")
                checked.add(row["number"])
        return checked

    def _recall(
        self, rows: Mapping[int, Mapping[str, Any]], checked: set[int]
    ) -> dict[int, Memory]:
        """Return the memories of these rows; one that is in use already is taken as it is."""
        kept = {}
        for client, row in rows.items():
            number = row["number"]
            memory = self._alive.get(number)
            if memory is None:
                path = self.folder / file_name(client, number)
                facts = {"length": row["bytes"], "sha256": row["sha256"]}
                memory = Memory(client, number, None, path, **facts, checked=number in checked)
                self._watch(memory)
            kept[client] = memory
        return kept

    def _discard(self, path: Path) -> None:
        self._garbage.add(path)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _rows(new: Iterable[Memory], gone: Iterable[int]) -> Iterable[dict[str, Any]]:
    for memory in new:
        facts = {"bytes": memory.length, "sha256": memory.sha256}
        yield {"client": memory.client, "number": memory.number, **facts}
    for client in gone:
        yield {"client": client, "number": None}


def _is_whole(text: bytes, mark: Mark) -> bool:
    return hashlib.sha256(text[: mark.bytes]).hexdigest() == mark.sha256


def _replay(text: bytes, mark: Mark) -> dict[int, dict[str, Any]]:
    """Return the last row of each client that had a memory at a mark."""
    if not _is_whole(text, mark):
        raise ValueError("the journal of client memories does not match its SHA-256")
    rows: dict[int, dict[str, Any]] = {}
    for line in text[: mark.bytes].splitlines():
        row = json.loads(line)
        rows.pop(row["client"], None)
        if row["number"] is not None:
            rows[row["client"]] = row
    return rows


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(paths: Iterable[Path]) -> None:
    """Return once files or folders have reached the disk."""
    with ThreadPoolExecutor(SYNCS) as pool:
        list(pool.map(_sync, paths))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
