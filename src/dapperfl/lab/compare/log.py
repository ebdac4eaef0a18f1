"""`NAME.json` beside `NAME.csv`: which commands made the rows, with what, in how much time."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dapperfl.lab.compare.rows import machine
from dapperfl.lab.display import clock
from dapperfl.lab.folder import intact, read_json, write_json
from dapperfl.lab.versions import versions


@dataclass
class Log:
    """What is written down of a command while it works; nothing if it had nothing to do."""

    path: Path
    entry: dict[str, Any]
    before: list[dict[str, Any]]  # of earlier commands
    start: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, path: Path, command: str) -> "Log":
        """Start an entry; it reaches the disk with its first run."""
        origin(path)  # a damaged one is named before anything is run, not after all of it
        began = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"command": command, "began": began, "runs": 0, "machine": machine()}
        return cls(path, entry | versions(), read_log(path))

    def note_run(self) -> None:
        """Count one more finished run, and the time until now."""
        self.entry["runs"] += 1
        self.entry["wall_seconds"] = round(time.monotonic() - self.start, 1)
        write_json(self.path, [*self.before, self.entry])


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a log; none where there is no file."""
    entries: list[dict[str, Any]] = read_json(path) if path.exists() else []
    return entries


def origin(path: Path) -> list[str]:
    """Say for people where rows come from: each command once, and the time of all."""
    with intact(path, "remove it; tables do without"):
        return _told(read_log(path))


def _told(entries: list[dict[str, Any]]) -> list[str]:
    if not entries:
        return []
    commands = dict.fromkeys(f"`{entry['command']}`" for entry in entries)
    seconds = sum(entry["wall_seconds"] for entry in entries)
    runs = sum(entry["runs"] for entry in entries)
    made = dict.fromkeys(
        f"dapperfl {entry['dapperfl']} ({entry.get('commit', 'installed')[:10]}), "
        f"torch {entry['torch']}, {entry['machine']}"
        for entry in entries
    )
    times = f"{runs} runs in {clock(seconds)}" + (
        f" ({len(entries)} pieces)" if len(entries) > 1 else ""
    )
    return [f"Made by {', '.join(commands)}: {times}; {'; '.join(made)}."]
