"""What a worker tells, and how often."""

import pytest
import torch

from dapperfl.errors import is_of_memory
from dapperfl.lab.records import RoundLine
from dapperfl.lab.schedule.memory import HOST
from dapperfl.lab.schedule.worker import Reports, has_no_room


def _line(number: int, mean: float, seconds: float = 2.0) -> RoundLine:
    return RoundLine(number, {"dark": mean}, mean, 1.0, seconds, costs={}, left_out=())


def _reports(monkeypatch, lines, moments):
    """Report rounds that end at the given moments, and the last of them for sure."""
    current = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: current[0])
    sent: list = []
    reports = Reports(sent.append, "cpu", lines)
    for number, moment in enumerate(moments, len(lines) + 1):
        current[0] = moment
        reports.add(_line(number, mean=100.0 - number))
    reports.flush()
    reports.flush()
    return sent


def test_hundreds_of_rounds_are_four_messages_a_second(monkeypatch):
    sent = _reports(monkeypatch, [], [0.01 * step for step in range(1, 101)])
    assert [each.round for each in sent] == [0, 1, 26, 51, 76, 100]


def test_slow_rounds_are_told_one_by_one(monkeypatch):
    sent = _reports(monkeypatch, [], [1.0, 2.0, 3.0])
    assert [each.round for each in sent] == [0, 1, 2, 3]


def test_best_counts_all_rounds_and_pace_those_of_this_process(monkeypatch):
    old = [_line(1, 99.5, seconds=1000.0), _line(2, 10.0, seconds=1000.0)]
    first, second = _reports(monkeypatch, old, [1.0])
    assert (first.round, first.last, first.best, first.seconds) == (2, 10.0, 99.5, None)
    assert (second.round, second.last, second.best, second.seconds) == (3, 97.0, 99.5, 2.0)


def test_memory_counts_from_the_first_round_on(monkeypatch):
    first, second = _reports(monkeypatch, [], [1.0])
    assert first.memory == {}
    assert second.memory[HOST].peak > 50e6  # torch alone takes more


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("out of memory of things past"), False),
    ],
)
def test_a_lack_of_memory_is_told_from_other_errors(error, expected):
    assert has_no_room(error) is expected
    assert is_of_memory(error) is expected
    outer = KeyError("x")
    outer.__cause__ = error
    assert is_of_memory(outer) is expected


def test_a_gpu_that_takes_no_more_processes_is_a_lack_of_room_too():
    error = RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nSearch")
    assert has_no_room(error)
    assert not is_of_memory(error)
