"""The parent's hold on a worker process: what it does, what it says, how it ended."""

import os
import signal
import subprocess
from contextlib import suppress
from multiprocessing.connection import Pipe
from typing import IO

from dapperfl.lab.schedule.memory import Memory
from dapperfl.lab.schedule.worker import Message, Task
from dapperfl.runtime.children import start_child

_SECONDS_TO_END = 10
_MOST_AT_ONCE = 2**20  # bytes of output; more than a pipe holds, so that none of the dead is lost
_LONGEST_LINE = 2**16  # bytes


class Worker:
    """A process for one device, with its latest job and the memory it takes.

    Args:
        device: Where it computes.
        together: With how many others it shares it at most, itself included.
    """

    def __init__(self, device: str, together: int = 1) -> None:
        self.device = device
        self.job = -1  # its index; the latest one while idle
        self.busy = False
        self.memory: dict[str, Memory] = {}
        self.last_words = ""  # of what it wrote itself, such as a crash in C
        self._link, theirs = Pipe()
        with theirs:
            self._process = start_child(
                "dapperfl.lab.schedule.worker:main",
                theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                together=together,
            )
        assert self._process.stdout is not None
        self._output: IO[bytes] | None = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._rest = b""

    def begin(self, job: int, task: Task) -> None:
        """Give it a run; a worker that has died meanwhile is found out by `messages`."""
        self.job, self.busy = job, True
        with suppress(OSError):
            self._link.send(task)

    def sources(self) -> list[int]:
        """What to wait for, as file descriptors."""
        sources = [self._link, self._output]
        return [source.fileno() for source in sources if source is not None]

    def messages(self) -> tuple[list[Message], bool]:
        """Return the messages that have come, and whether more can come."""
        found: list[Message] = []
        alive = self._process.poll() is None  # asked first: the last words of the dead count
        try:
            while self._link.poll():
                found.append(self._link.recv())
        except (EOFError, OSError):
            alive = False
        return found, alive

    def output(self) -> list[str]:
        """Return the complete lines that it wrote to stdout and stderr itself.

        Of one that writes without end, or without ending a line, as much as is due now.
        """
        parts, left = [self._rest], _MOST_AT_ONCE
        while self._output is not None and left > 0:
            try:
                data = os.read(self._output.fileno(), _LONGEST_LINE)
            except BlockingIOError:
                break
            left -= len(data)
            parts.append(data or b"\n")
            if not data:
                self._output.close()
                self._output = None
        *lines, self._rest = b"".join(parts).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        texts = [text for line in lines if (text := line.decode(errors="replace").rstrip())]
        self.last_words = texts[-1] if texts else self.last_words
        return texts

    def cause_of_death(self) -> tuple[str, bool]:
        """Say how a process that is gone has ended, and whether a signal has killed it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        code = self._process.returncode
        if code is not None and code < 0:
            names = {each.value: f" ({each.name})" for each in signal.Signals}  # not of all
            return f"the process died with signal {-code}{names.get(-code, '')}", True
        words = f": {self.last_words}" if self.last_words else ""
        return f"the process ended with code {code}{words}", False

    def close(self) -> None:
        """End the process and whatever it started, at once; run folders bear that."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._link.close()
        if self._output is not None:
            self._output.close()
            self._output = None
