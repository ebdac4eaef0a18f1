"""How many threads torch computes with: another number may change the last bits of a sum."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

Result = TypeVar("Result")
Facts = ParamSpec("Facts")


class HasThreads(Protocol):
    """Something that computes with a number of threads of its own."""

    threads: int | None


Self = TypeVar("Self", bound=HasThreads)


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Compute with so many threads, then with as many as before; None leaves it as it is."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(
    work: Callable[Concatenate[Self, Facts], Result],
) -> Callable[Concatenate[Self, Facts], Result]:
    """Let a method compute with the threads of its object."""

    @wraps(work)
    def inside(self: Self, /, *args: Facts.args, **kwargs: Facts.kwargs) -> Result:
        with torch_threads(self.threads):
            return work(self, *args, **kwargs)

    return inside


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
