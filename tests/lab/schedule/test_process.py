"""A worker as its parent holds it."""

import signal
import time
from multiprocessing.connection import wait
from typing import Any

import pytest

from dapperfl.lab.schedule.process import Worker
from dapperfl.lab.schedule.worker import Failed


class Puzzle:
    """What a worker takes for a task, and cannot read."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)


def _heard(worker: Worker) -> tuple[list[Any], bool, list[str]]:
    """Wait for an answer or an end; return the messages, whether it lives, and what it wrote."""
    found: list[Any] = []
    lines: list[str] = []
    alive = True
    end = time.monotonic() + 60
    while alive and not found and time.monotonic() < end:
        wait(worker.sources(), 1.0)
        messages, alive = worker.messages()
        found += messages
        lines += worker.output()
    return found, alive, lines


@pytest.fixture
def worker():
    worker = Worker("cpu")
    yield worker
    worker.close()


def test_an_unreadable_task_is_answered_and_a_death_is_noticed(worker):
    worker.begin(3, Puzzle("print('so\\nmany', end=' '); raise ValueError('no\\n such thing')"))
    assert (worker.job, worker.busy) == (3, True)
    found, alive, lines = _heard(worker)
    (failed,) = found
    assert isinstance(failed, Failed)
    assert (failed.error, failed.no_room) == ("ValueError: no such thing", False)
    assert "Traceback" in failed.traceback
    assert (alive, lines) == (True, ["so"])
    worker.begin(4, Puzzle("import os; os.write(1, b'words'); os.abort()"))
    found, alive, lines = _heard(worker)
    assert (found, alive) == ([], False)
    assert worker.cause_of_death() == ("the process died with signal 6 (SIGABRT)", True)
    assert [*lines, *worker.output()] == ["many words"]
    assert worker.last_words == "many words"


def test_one_that_prints_without_end_holds_up_nobody(worker, monkeypatch):
    reads: list[int] = []

    def read(handle: int, most: int) -> bytes:
        reads.append(handle)
        assert len(reads) < 1000
        return b"again and again " * (most // 16)

    monkeypatch.setattr("os.read", read)
    texts = worker.output()
    assert texts
    assert max(map(len, texts)) <= 2**20
    monkeypatch.undo()
    worker.close()
    assert worker.output() == []


def test_a_signal_without_a_name_is_a_cause_of_death_too(worker):
    worker._process.send_signal(signal.SIGRTMIN + 5)
    reason, by_signal = worker.cause_of_death()
    assert (reason, by_signal) == (f"the process died with signal {signal.SIGRTMIN + 5}", True)
