"""Real servers and devices for tests: started as a user starts them, and none left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dapperfl.lab.records import RoundLine, load_records

ROOT = Path(__file__).parents[2]
SECONDS = 240.0  # for anything that must happen; the machine may be slow and busy
MARKS = [pytest.mark.flower, pytest.mark.timeout(900)]
DAPPERFL = [sys.executable, "-c", "from dapperfl.cli import main; main()"]


@dataclass(frozen=True)
class Command:
    """A running `dapperfl ...`, and the file that its output goes to."""

    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, words: str) -> None:
        """Wait until it has said something, given as a regular expression."""
        until(lambda: re.search(words, self.said()), f"{words!r} of", self, alive=True)

    def ended(self) -> int:
        """Wait until it ends, and return its exit code."""
        until(lambda: self.process.poll() is not None, "the end of", self)
        return self.process.wait()

    def kill(self) -> None:
        """Kill it as a power cut would: it can do nothing about it."""
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> int:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()


def until(
    true: Callable[[], Any], what: str, command: Command | None = None, *, alive: bool = False
) -> None:
    """Wait until something is so; fail with what the command said if it never is."""
    end = time.monotonic() + SECONDS
    while not true():
        said = command.said() if command else ""
        gone = alive and command is not None and command.process.poll() is not None
        assert not gone or true(), f"waited in vain for {what} a command that said:\n{said}"
        assert time.monotonic() < end, f"waited too long for {what} a command that said:\n{said}"
        time.sleep(0.1)


@contextmanager
def started(arguments: Sequence[object], output: Path, **environment: str) -> Iterator[Command]:
    """Run `dapperfl` with arguments; end it, if it still runs, on the way out."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*DAPPERFL, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=output.parent,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"} | environment,
        )
    try:
        yield Command(process, output)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def node_group(state: Path) -> int:
    """Return the process group of a device's SuperNode."""
    return int((state / ".flower/supernode.pid").read_text())


def received(state: Path, kind: str) -> int:
    """Count the messages of a kind that a device has been sent since it was set up."""
    log = state / ".flower/supernode.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    return text.count(f"Receiving: {kind} message")


def worked(state: Path) -> list[dict[str, Any]]:
    """Return what a device has worked on."""
    return [json.loads(line) for line in (state / "worked.jsonl").read_text().splitlines()]


def rounds(out: Path) -> list[RoundLine]:
    return load_records(out) if out.exists() else []


def reasons(line: RoundLine) -> dict[int, str]:
    return {absence.id: absence.reason for absence in line.left_out}


def processes_of(folder: Path) -> list[str]:
    """Name the processes that have anything to do with a folder; the dead do not count."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in words and state != "Z":
            found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()[:200]!r}")
    return found


def assert_nothing_left(folder: Path) -> None:
    """Fail if a process is left; those that were just killed may need a moment to go."""
    end = time.monotonic() + 20
    while processes_of(folder) and time.monotonic() < end:
        time.sleep(0.2)
    assert processes_of(folder) == []
