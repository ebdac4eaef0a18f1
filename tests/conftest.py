"""What all tests share: one thread, Ctrl-C as it is, and the embedded benchmark drawn once."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark
from dapperfl.runtime import local
from tests.traced import TracedOnce

torch.set_num_threads(1)  # machines that run tests have few cores, and workers share them
for backend in (torch.cuda, torch.xpu, torch.mtia):
    if not backend.is_available():  # each seed would be noted for it with the whole call stack
        backend.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
settings.register_profile("patient", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("patient")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background ignores Ctrl-C, and so would the programs that tests start and stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the thousands of tests and modules that stay to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _equal_nets_are_traced_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "ChannelGraph", TracedOnce)
        yield


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
