"""All cores give what the loop gives, to the last bit, whoever trains whom and whoever dies."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts.worlds import Broken, federation
from tests.sim.test_graphs import RHOS, TRAIN, VARIANTS, Dropping, assert_alike
from tests.tiny import tiny_net
from torch import Tensor

from dapperfl import methods
from dapperfl.core.messages import Work
from dapperfl.core.net import Batch, Net
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.methods.moon import Moon
from dapperfl.runtime.local import Trade
from dapperfl.runtime.training import ClientData
from dapperfl.sim import errands, workers
from dapperfl.sim.cpu import CpuRunner
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import Simulator
from dapperfl.sim.workers import Job, Jobs

QUICK = ("dapperfl", "moon", "fedsr", "nefl", "fpl")  # they send and keep the most
IDS = [f"{name}:{preset}" for name, preset in VARIANTS]


class ForOthers(Jobs):
    """Jobs of which the runner itself takes none as long as somebody else may."""

    crew: Callable[[], Any] = lambda: None

    def take_unless(self, wanted: Job) -> Job | None:
        with self.changed:
            while wanted.done is None and (crew := self.crew()) is not None and crew.alive:
                self.changed.wait(0.05)
        return super().take_unless(wanted)


def helped(helpers: int) -> Callable[..., CpuRunner]:
    """Return what makes a runner that leaves all work to its helpers."""

    def make(trade: Trade, data: Mapping[int, ClientData], seed: int) -> CpuRunner:
        runner = CpuRunner(trade, data, seed, workers=1 + helpers, patience=0.0)
        runner.jobs = ForOthers()
        seen = weakref.ref(runner)  # threads hold on to the jobs
        runner.jobs.crew = lambda: getattr(seen(), "crew", None)
        return runner

    return make


def world(method: Method, runner: Any, **changes: Any) -> Simulator:
    settings = {"net": tiny_net(), "federation": federation(RHOS), "train": TRAIN, **changes}
    return Simulator(method=method, runner=runner, **{"rounds": 2, **settings})


def orders(simulator: Simulator) -> list[int]:
    """Count the devices that each helper has worked for."""
    crew = simulator.runner.crew  # type: ignore[attr-defined]
    return [len(worker.held) for worker in crew.workers]


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let helpers be threads, which start at once; what is said passes a socket all the same."""

    class Thread(threading.Thread):
        returncode = None

        def kill(self) -> None: ...
        def wait(self) -> None: ...

    def serve(end: int) -> None:
        with suppress(OSError):  # it cannot even complain to somebody who is gone
            errands.serve(end)

    def listen(channel: Any, inbox: Any) -> None:
        with suppress(EOFError, OSError):
            while True:
                inbox.put(channel.receive())
        inbox.put(None)

    def start(end: int) -> Thread:
        thread = Thread(target=serve, args=(os.dup(end),), daemon=True)
        thread.start()
        return thread

    monkeypatch.setattr(workers, "_start", start)
    monkeypatch.setattr(errands, "listen", listen)
    yield
    gc.collect()


@pytest.mark.parametrize("name", QUICK)
def test_whoever_trains_the_clients_gives_what_the_loop_gives(name, in_threads):
    method = methods.load(name)()
    ours, theirs = world(method, helped(1)), world(method, LoopRunner)
    assert_alike(list(ours.rounds()), list(theirs.rounds()), 0.0)
    assert orders(ours) == [len(RHOS)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_helpers_it_is_the_loop_as_well(count):
    runner = partial(CpuRunner, workers=count)
    ours, theirs = (world(DapperFL(), each) for each in (runner, LoopRunner))
    assert_alike(list(ours.rounds()), list(theirs.rounds()), 0.0)
    assert ours.runner.crew is None  # type: ignore[attr-defined]  # too little to do


def test_it_trains_with_one_thread_and_leaves_the_number_alone():
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Counts(FedAvg):
        def loss(self, net, batch, work):
            seen.append(torch.get_num_threads())
            return super().loss(net, batch, work)

    torch.set_num_threads(2)
    try:
        list(world(Counts(), CpuRunner, rounds=1).rounds())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert set(seen) == {1}


def test_dropout_draws_what_it_draws_in_the_loop(in_threads):
    method = DapperFL(scope="all", multiple=1)
    ours, theirs = (
        list(world(method, runner, net=Dropping()).rounds()) for runner in (helped(1), LoopRunner)
    )
    assert_alike(ours, theirs, 0.0)


def test_a_client_that_fails_in_a_worker_is_left_out(in_threads):
    def records(runner: Any) -> list[Any]:
        simulator = world(DapperFL(), runner)
        simulator.runner.data = {**simulator.data, 1: Broken(8)}  # type: ignore[attr-defined]
        return list(simulator.rounds())

    ours, theirs = records(helped(1)), records(LoopRunner)
    assert_alike(ours, theirs, 0.0)
    (out,) = ours[0].left_out
    assert out.reason.startswith("the battery is empty (worlds.py:")


def test_a_resumed_run_goes_on_where_it_was(in_threads):
    whole = list(world(Moon(), LoopRunner, rounds=3).rounds())
    first = next(world(Moon(), helped(1), rounds=3).rounds())
    rest = list(world(Moon(), helped(1), rounds=3).rounds(first.snapshot))
    assert_alike([first, *rest], whole, 0.0)


def test_what_cannot_travel_is_trained_here_and_said_once(in_threads, caplog):
    class Local(FedAvg):
        pass

    ours, theirs = (list(world(Local(), each).rounds()) for each in (helped(2), LoopRunner))
    assert_alike(ours, theirs, 0.0)
    (told,) = [each for each in caplog.messages if "worker processes cannot help" in each]
    assert "Local" in told


@dataclass(frozen=True, kw_only=True)
class Greedy(FedAvg):
    """Takes more memory than a worker has."""

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")
        return super().loss(net, batch, work)


def test_a_worker_that_has_too_little_memory_is_not_said_to_lack_a_module(in_threads, caplog):
    ours, theirs = (list(world(Greedy(), each).rounds()) for each in (helped(2), LoopRunner))
    assert_alike(ours, theirs, 0.0)
    told = [each for each in caplog.messages if "worker process" in each]
    assert set(told) == {"a worker process has given up (MemoryError: no room); the others go on"}


def test_where_no_process_can_be_started_this_one_does_it_all(monkeypatch, caplog):
    def start(end: int) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(workers, "_start", start)
    ours, theirs = (list(world(FedAvg(), each).rounds()) for each in (helped(2), LoopRunner))
    assert_alike(ours, theirs, 0.0)
    (told,) = [each for each in caplog.messages if "worker process" in each]
    assert "Resource temporarily unavailable" in told


def test_where_no_thread_can_be_started_no_process_is_left_behind(monkeypatch, caplog):
    begun = []
    start, begin = workers._start, threading.Thread.start

    def noted(end: int) -> Any:
        begun.append(start(end))
        return begun[-1]

    def refused(thread: threading.Thread) -> None:
        if thread.name == "dapperfl-worker":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(workers, "_start", noted)
    monkeypatch.setattr(threading.Thread, "start", refused)
    ours, theirs = (list(world(FedAvg(), each).rounds()) for each in (helped(2), LoopRunner))
    assert_alike(ours, theirs, 0.0)
    (told,) = [each for each in caplog.messages if "worker process" in each]
    assert "can't start new thread" in told
    (process,) = begun
    assert process.returncode is not None


def test_data_of_a_worker_are_bounded(in_threads, monkeypatch):
    monkeypatch.setattr(workers, "HELD", 2)
    ours, theirs = (world(DapperFL(), each) for each in (helped(1), LoopRunner))
    assert_alike(list(ours.rounds()), list(theirs.rounds()), 0.0)
    assert orders(ours) == [2]


def test_a_caller_who_stops_half_way_leaves_nothing_to_do(in_threads):
    simulator = world(FedAvg(), CpuRunner)
    runner: Any = simulator.runner
    server = simulator.start().server
    replies = runner.train(simulator._assignments(server, simulator.cohort(1)))
    next(replies)
    replies.close()
    assert not runner.jobs.open


def test_without_exactness_the_fastest_way_is_tried_and_said(caplog):
    caplog.set_level(logging.INFO)
    runner = partial(CpuRunner, exact=False)
    near, theirs = (list(world(FedAvg(), each).rounds()) for each in (runner, LoopRunner))
    assert_alike(near, theirs, 1e-3)
    (told,) = [each for each in caplog.messages if "chosen for this net" in each]
    assert " threads, c" in told


def test_without_exactness_statistics_need_no_training_before():
    simulator = world(DapperFL(), partial(CpuRunner, exact=False))
    reference = world(DapperFL(), LoopRunner)
    ours, theirs = (each.compact(each.start().server, 0.5) for each in (simulator, reference))
    for name, tensor in ours.weights.items():
        assert torch.allclose(tensor, theirs.weights[name], rtol=1e-3), name


# --- with processes ---


def children() -> set[int]:
    """Return the processes that this one has started and not yet seen end."""
    listed = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text()
    return set(map(int, listed.split()))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.slow
def test_processes_give_what_the_loop_gives_and_one_that_is_killed_changes_nothing(caplog):
    gc.collect()
    before, files, shared = children(), open_files(), set(os.listdir("/dev/shm"))
    theirs = list(world(Moon(), LoopRunner, rounds=3).rounds())
    simulator = world(Moon(), helped(2), rounds=3)
    records = simulator.rounds()
    ours = [next(records)]
    assert sum(orders(simulator)) >= len(RHOS)
    first, second = (worker.process for worker in simulator.runner.crew.workers)  # type: ignore[attr-defined]
    os.kill(first.pid, signal.SIGKILL)
    ours += records
    assert_alike(ours, theirs, 0.0)
    assert any("ended by itself (exit code -9)" in each for each in caplog.messages)
    assert not any(record.left_out for record in ours)
    assert second.poll() is None
    del simulator, records, first, second, ours
    gc.collect()
    assert children() == before
    assert open_files() == files
    assert set(os.listdir("/dev/shm")) == shared


@pytest.mark.slow
@pytest.mark.parametrize("helpers", [1, 2])
@pytest.mark.parametrize(("name", "preset"), VARIANTS, ids=IDS)
def test_any_number_of_processes_gives_what_the_loop_gives(name, preset, helpers):
    method = methods.load(name).from_preset(preset)
    ours, theirs = world(method, helped(helpers)), world(method, LoopRunner)
    assert_alike(list(ours.rounds()), list(theirs.rounds()), 0.0)
    assert any(orders(ours))


ALONE = """
import sys, time
from tests.sim.test_cpu import helped, world, FedAvg
simulator = world(FedAvg(), helped(2), rounds=1000)
for record in simulator.rounds():
    if record.round_num == 1:
        print(*(w.process.pid for w in simulator.runner.crew.workers), flush=True)
"""


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout as out:
        pids = [int(each) for each in out.readline().split()]
        assert len(pids) == 2
        parent.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


MAIN = """
from dataclasses import dataclass
from tests.sim.test_cpu import helped, world, FedAvg
import logging
logging.basicConfig()

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    pass

print(len(list(world(Mine(), helped(1)).rounds())))
"""


@pytest.mark.slow
def test_a_method_of_the_main_program_is_trained_here():
    done = subprocess.run(
        [sys.executable, "-c", MAIN], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "2\n"
    assert done.stderr.count("worker processes cannot help") == 1
    assert "Mine" in done.stderr
