"""What all tests share: one thread, Ctrl-C as it is, and the embedded benchmark drawn once."""

import signal
from pathlib import Path

import pytest
import torch

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark

torch.set_num_threads(1)  # machines that run tests have few cores, and workers share them
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background ignores Ctrl-C, and so would the programs that tests start and stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def minidigits_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root that holds minidigits, drawn afresh by the code under test."""
    root = tmp_path_factory.mktemp("data")
    benchmarks.load("minidigits", root)
    return root


@pytest.fixture(scope="session")
def minidigits(minidigits_root: Path) -> Benchmark:
    """The embedded benchmark."""
    return benchmarks.load("minidigits", minidigits_root)
