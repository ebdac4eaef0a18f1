"""What can go wrong in a worker, each as a benchmark or a method that a config can name."""

import os
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from dapperfl.data.benchmark import Benchmark
from dapperfl.methods.fedavg import FedAvg
from tests.lab import toy_world


def load_chatty(root: Path | None) -> Benchmark:
    """Warn, and write past Python's stdout."""
    warnings.warn("the pictures are made up", stacklevel=1)
    os.write(1, b"half a line, ")
    os.write(2, b"then the rest\n")
    return toy_world.load(root)


def load_killed(root: Path | None) -> Benchmark:
    """Die of a real SIGKILL, every time."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def load_killed_once(root: Path | None) -> Benchmark:
    """Die of a real SIGKILL, unless that has happened before."""
    return load_killed(root) if _first_time(root) else toy_world.load(root)


def load_large_once(root: Path | None) -> Benchmark:
    """Lack memory as on a GPU, unless that has happened before."""
    if _first_time(root):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.")
    return toy_world.load(root)


def load_quitting(root: Path | None) -> Benchmark:
    """End the process without a word to anybody but stderr."""
    os.write(2, b"enough\n")
    os._exit(3)


def _first_time(root: Path | None) -> bool:
    assert root is not None
    try:
        (root / "tried").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    """A method with a mistake that shows in its second round."""

    def update(self, server, updates):
        """Fail on the server's side, which no client's border catches."""
        if server.round_num >= 1:
            raise IndexError("list index out of range")
        return super().update(server, updates)
