"""What a user sees of many runs, on terminals and in pipes."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from dapperfl.lab.schedule import Job, Outcome, Progress
from dapperfl.lab.schedule.display import Board, watched_all

SUMMARY = {"global_accuracy": {"best": 71.26, "last": 70.0}, "seconds": 75.0}


def _console(terminal: bool) -> Console:
    return Console(
        file=io.StringIO(), width=100, force_terminal=terminal, highlight=False, _environ={}
    )


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def jobs(toy) -> list[Job]:
    names = ["fedavg seed 0", "fedavg seed 1", "moon[x] seed 0"]
    return [Job(name, toy("rounds=10"), Path(name)) for name in names]


@pytest.fixture
def moment(monkeypatch) -> list[float]:
    """The time, which passes only when a test says so."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_pipe_gets_a_line_for_each_run_and_a_heartbeat(jobs, moment):
    console = _console(terminal=False)
    with watched_all(console, jobs) as show:
        show(Outcome(jobs[0], SUMMARY))
        show(Progress(jobs[1], "cpu"))
        moment[0] += 9
        show(Progress(jobs[1], "cpu", 2, 50.0, 60.0, 4.5))
        moment[0] += 1
        show(Progress(jobs[2], "cpu", 1, 50.0, 60.0, 1.5))
        show(Progress(jobs[2], "cpu", 2, 50.0, 60.0, 1.5))
        moment[0] += 9
        show(Progress(jobs[2], "cpu", 5, 50.0, 60.0, 1.5))
        show(Outcome(jobs[2], error="the process died with signal 9"))
        show(Outcome(jobs[1], SUMMARY))
    assert _text(console).splitlines() == [
        "[1/3] fedavg seed 0  best 71.3  last 70.0  1:15  (was finished before)",
        # 8 rounds of 4.5 s, which the 9 rounds of 1.5 s beside them do not delay
        "13/30 rounds  1/3 runs done, 2 running  0:36 left",
        "[2/3] moon[x] seed 0  failed: the process died with signal 9",
        "[3/3] fedavg seed 1  best 71.3  last 70.0  1:15",
    ]


def test_a_terminal_gets_one_view_of_all_and_keeps_the_failures(jobs, moment):
    console = _console(terminal=True)
    with watched_all(console, jobs) as show:
        show(Outcome(jobs[0], error="no such file"))
        show(Progress(jobs[2], "cuda:1", 4, 40.04, 50.0, 0.25))
    text = _text(console)
    assert "\x1b[" in text
    assert "[1/3] fedavg seed 0  failed: no such file" in text
    for words in ("4/20 rounds", "0/3 runs done, 1 failed, 1 running", "moon[x] seed 0", "4/10"):
        assert words in text
    for words in ("cuda:1", "40.0", "50.0", "0.25", "s/round", "0:04 left"):
        assert words in text


def test_runs_that_wait_are_expected_to_take_as_long_as_the_others(jobs, moment):
    board = Board(jobs)
    assert board.seconds_left() is None
    board.add(Progress(jobs[0], "cpu", 5, 50.0, 50.0, 2.0))
    assert board.seconds_left() == 5 * 2.0 + 2 * 10 * 2.0  # one after another
    board.add(Progress(jobs[1], "cpu", 5, 50.0, 50.0, 4.0))
    assert board.seconds_left() == (5 * 2.0 + 5 * 4.0 + 10 * 3.0) / 2
    moment[0] += 5
    assert board.seconds_left() == (5 * 2.0 + 5 * 4.0 + 10 * 3.0) / 2 - 5


def test_a_single_long_run_is_not_shared_out(jobs, moment):
    board = Board(jobs)
    for job, number in zip(jobs, (1, 9, 9), strict=True):
        board.add(Progress(job, "cpu", number, 50.0, 50.0, 1.0))
    assert board.seconds_left() == 9.0


def test_when_all_have_ended_nothing_is_left(jobs, moment):
    board = Board(jobs)
    board.add(Progress(jobs[0], "cpu", 3, 50.0, 50.0, 1.0))
    for job in jobs:
        board.add(Outcome(job, error="broken"))
    assert board.seconds_left() == 0.0
    assert board.overview() == "3/3 rounds  0/3 runs done, 3 failed  0:00 left"
