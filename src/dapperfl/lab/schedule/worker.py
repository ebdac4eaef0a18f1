"""The process that does one run after another, and tells its parent how each one goes.

It reads tasks from a pipe and writes messages to it. When the pipe is closed, because the parent
wants it or because the parent was killed, the process ends at once: run folders bear that.
"""

import gc
import logging
import math
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from threading import Lock, Thread
from typing import Any, NoReturn

import torch

from dapperfl.errors import DapperFLError, is_of_memory
from dapperfl.lab.config import Config
from dapperfl.lab.experiment import opened
from dapperfl.lab.folder import RunFolder, read_json
from dapperfl.lab.records import RoundLine
from dapperfl.lab.schedule.memory import Memory, measured

_SECONDS_BETWEEN = 0.25  # rounds may be short; a display gains nothing from more


@dataclass(frozen=True)
class Task:
    """A run to do, on which device, with how many threads, and which notes to pass on."""

    config: Config
    out: Path
    device: str
    threads: int
    level: int


@dataclass(frozen=True)
class Rounds:
    """How far the run is, and what it takes; nothing is taken as measured before a round."""

    round: int
    last: float | None
    best: float | None
    seconds: float | None
    memory: dict[str, Memory]


@dataclass(frozen=True)
class Finished:
    """The run is complete."""

    summary: dict[str, Any]
    memory: dict[str, Memory]


@dataclass(frozen=True)
class Failed:
    """The run raised something; there is a traceback where it was not raised on purpose."""

    error: str
    traceback: str
    no_room: bool  # for lack of memory, or because the GPU takes no more processes


@dataclass(frozen=True)
class Note:
    """Something was logged, or warned of."""

    level: int
    text: str


Message = Rounds | Finished | Failed | Note
Send = Callable[[Message], None]


def main(handle: int) -> None:
    """Work until the pipe is closed."""
    link, tasks, lock = Connection(handle), SimpleQueue[bytes](), Lock()
    Thread(target=_listen, args=(link, tasks), daemon=True).start()

    def send(message: Message) -> None:
        try:
            with lock:  # notes may come from any thread
                link.send(message)
        except OSError:
            _leave()

    logging.basicConfig(handlers=[_Notes(send)], level=logging.WARNING)
    logging.captureWarnings(True)
    while True:
        data = tasks.get()
        send(_answer(data, send))
        gc.collect()
        torch.cuda.empty_cache()


def _listen(link: Connection, tasks: "SimpleQueue[bytes]") -> None:
    while True:
        try:
            tasks.put(link.recv_bytes())
        except (EOFError, OSError):
            _leave()


def _leave() -> NoReturn:
    """End at once, with every process that this one started."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class _Notes(logging.Handler):
    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(Note(record.levelno, record.getMessage().strip()))


def _answer(data: bytes, send: Send) -> Finished | Failed:
    try:
        task: Task = pickle.loads(data)
        torch.set_num_threads(task.threads)
        logging.getLogger("dapperfl").setLevel(task.level)
        return _run(task, send)
    except Exception as error:  # the border of a run: the others go on
        expected = isinstance(error, DapperFLError)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        details = "" if expected else traceback.format_exc()
        return Failed(" ".join(text.split()), details, no_room=has_no_room(error))


def has_no_room(error: BaseException) -> bool:
    """Tell whether a run would have gone on with more memory, or fewer processes on its GPU."""
    turned_away = isinstance(error, RuntimeError) and "busy or unavailable" in str(error)
    return turned_away or is_of_memory(error)


def _run(task: Task, send: Send) -> Finished:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(task.device)  # a worker keeps to one device
    folder = RunFolder(task.out)
    with opened(task.config, task.out, resume=folder.is_used()) as experiment:
        reports = Reports(send, task.device, experiment.lines)
        for line in experiment.rounds():
            reports.add(line)
        reports.flush()
        experiment.finish()
    return Finished(read_json(folder.summary), measured(task.device))


class Reports:
    """Tells how far a run is: at once after its first round and its last, else now and then."""

    def __init__(self, send: Send, device: str, lines: Sequence[RoundLine]) -> None:
        self._send, self._device = send, device
        self._means = [line.mean for line in lines]
        self._seconds: list[float] = []
        self._sent = -math.inf
        self._due = False
        last, best = (self._means[-1], max(self._means)) if lines else (None, None)
        send(Rounds(len(lines), last, best, None, {}))

    def add(self, line: RoundLine) -> None:
        """Take in one more round."""
        self._means.append(line.mean)
        self._seconds.append(line.seconds)
        self._due = True
        if time.monotonic() - self._sent >= _SECONDS_BETWEEN:
            self.flush()

    def flush(self) -> None:
        """Send the latest state, if it was not yet."""
        if not self._due:
            return
        self._sent, self._due = time.monotonic(), False
        pace = fmean(self._seconds)
        last, best = self._means[-1], max(self._means)
        self._send(Rounds(len(self._means), last, best, pace, measured(self._device)))
