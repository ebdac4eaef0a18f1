"""What all tests share: one thread, Ctrl-C as it is, and the embedded benchmark drawn once."""

import gc
import re
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


# Tests that are repeated for every method, or for every name of `reproduce`: `make test` tries a
# few of each, the slow tier all others.
REPEATED = frozenset(
    {
        "test_a_run_resumed_from_disk_ends_where_the_uninterrupted_one_does",
        "test_each_name_has_its_rows_its_page_and_its_axes",
        "test_every_field_changes_the_result",
        "test_every_method_gives_what_the_loop_gives",
        "test_every_method_learns_the_same_over_the_wire",
        "test_it_learns_the_same_as_in_simulation",
        "test_it_trains_any_net_within_its_budgets",
        "test_no_method_sees_a_difference",
        "test_the_numbers_are_the_recorded_ones",
        "test_the_order_in_which_clients_train_and_answer_does_not_matter",
        "test_training_as_in_the_paper_stays_far_from_absurd",
    }
)
ALWAYS = {"dapperfl", "fedavg", "digits"}  # words in the names of those that are always tried


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of what is repeated to the slow tier, before tiers are chosen."""
    for item in items:
        if isinstance(item, pytest.Function) and item.originalname in REPEATED:
            words = set(re.split(r"[-.:]", item.callspec.id))
            if not words & ALWAYS:
                item.add_marker("slow")


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
