"""The number of threads is changed for a while only."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from dapperfl.runtime.threads import cores, in_threads, torch_threads


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(("asked", "inside"), [(1, 1), (3, 3), (None, 2)])
def test_threads_are_as_asked_and_as_before_afterwards(asked, inside):
    with torch_threads(asked):
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 2


def test_threads_are_given_back_after_an_error():
    with pytest.raises(ValueError, match="no"), torch_threads(1):
        raise ValueError("no")
    assert torch.get_num_threads() == 2


@dataclass
class Worker:
    threads: int | None

    @in_threads
    def seen(self, extra: int) -> int:
        return torch.get_num_threads() + extra


def test_a_method_computes_with_the_threads_of_its_object():
    assert Worker(1).seen(10) == 11
    assert Worker(None).seen(extra=10) == 12


def test_there_is_a_core():
    assert cores() >= 1
