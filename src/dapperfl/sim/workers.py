"""Worker processes that help this one: started in the background, given clients when they are free.

Who trains a client changes nothing about the result. So nobody waits for a worker to start, and a
worker that dies leaves its client to the others. Each worker has a thread here that talks to it;
the threads and the runner share one list of jobs.
"""

import logging
import socket
import subprocess
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dapperfl.core.messages import Assignment, StatisticsTask
from dapperfl.core.state import State
from dapperfl.runtime.children import start_child
from dapperfl.runtime.training import ClientData
from dapperfl.sim.errands import Done, Order, Refusal, Setup
from dapperfl.sim.parcels import Channel

HELD = 64  # devices whose data a worker keeps
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """Something to do for one client, by whoever is free."""

    task: Assignment | StatisticsTask
    data: ClientData | None  # None: the client has none, and will be left out
    memory: State = field(default_factory=dict)
    done: Done | None = None


class Jobs:
    """The jobs that nobody has begun; the runner and the workers take them in order."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.open: deque[Job] = deque()
        self.closed = False

    def offer(self, job: Job) -> None:
        """Let anybody take a job."""
        with self.changed:
            self.open.append(job)
            self.changed.notify_all()

    def take(self) -> Job | None:
        """Wait for a job; None means that there will be none."""
        with self.changed:
            while not self.open and not self.closed:
                self.changed.wait()
            return None if self.closed else self.open.popleft()

    def take_unless(self, wanted: Job) -> Job | None:
        """Wait until there is a job to take, or until the wanted one is done: then None."""
        with self.changed:
            while wanted.done is None and not self.open:
                self.changed.wait()
            return None if wanted.done is not None else self.open.popleft()

    def finish(self, job: Job, done: Done) -> None:
        """Say what became of a job."""
        with self.changed:
            job.done = done
            self.changed.notify_all()

    def hand_back(self, job: Job) -> None:
        """Leave a begun job to somebody else."""
        with self.changed:
            self.open.appendleft(job)
            self.changed.notify_all()

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """Take back jobs whose result nobody waits for any more."""
        unwanted = set(jobs)
        with self.changed:
            self.open = deque(job for job in self.open if job not in unwanted)

    def close(self) -> None:
        """Send everybody home."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Crew:
    """The worker processes of one runner."""

    def __init__(self, jobs: Jobs, setup: Setup, size: int) -> None:
        once = _Once()
        self.workers: list[_Worker] = []
        weakref.finalize(self, _dismiss, jobs, self.workers)
        try:
            for _ in range(size):
                self.workers.append(_Worker(jobs, setup, once))
        except OSError as error:
            logger.warning("no more than %d worker processes: %s", len(self.workers), error)

    @property
    def alive(self) -> int:
        """How many workers are ready or getting ready."""
        return sum(worker.thread.is_alive() for worker in self.workers)


def _dismiss(jobs: Jobs, workers: list["_Worker"]) -> None:
    jobs.close()
    for worker in workers:
        worker.stop()
    if threading.current_thread() is threading.main_thread():  # a worker's thread may be here too
        for worker in workers:
            worker.thread.join()


class _Worker:
    """One process, and the thread that talks to it."""

    def __init__(self, jobs: Jobs, setup: Setup, once: "_Once") -> None:
        self.jobs, self.setup, self.once = jobs, setup, once
        self.names: dict[str, object] = {"graph": setup.graph}
        self.held: OrderedDict[int, ClientData | None] = OrderedDict()
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, remember=True)
        try:
            with theirs:
                self.process = _start(theirs.fileno())
        except OSError:
            self.channel.close()
            raise
        self.thread = threading.Thread(target=self._serve, name="dapperfl-worker", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:  # the process was the last that the system allows
            self.stop()
            self.channel.close()
            raise OSError(str(error)) from error

    def stop(self) -> None:
        """End the process; whatever it was doing is of no use any more."""
        self.process.kill()
        self.process.wait()

    def _serve(self) -> None:
        try:
            self.channel.send(self.setup, {})
            self._hear(self.names)
            while (job := self.jobs.take()) is not None:
                self._do(job)
        except (EOFError, OSError):
            self.process.wait()
            if not self.jobs.closed:
                logger.warning(
                    "a worker process ended by itself (exit code %s); the others go on",
                    self.process.returncode,
                )
        except MemoryError as error:
            logger.warning("a worker process has given up (%s); the others go on", error)
        except Exception as error:  # whatever pickle raises, and it raises anything
            self.once.tell(error)
        finally:
            self.channel.close()  # which ends the process

    def _do(self, job: Job) -> None:
        try:
            self.channel.send(self._order(job), self.names)
            done = self._hear(self.names | {"given": job.task.model.submodel})
        except BaseException:
            self.jobs.hand_back(job)
            raise
        self.jobs.finish(job, done)

    def _hear(self, names: dict[str, object]) -> Any:
        heard = self.channel.open(self.channel.receive(), names)
        if isinstance(heard, Refusal) and heard.no_room:
            raise MemoryError(heard.reason)
        if isinstance(heard, Refusal):
            raise _RefusedError(heard.reason)
        return heard

    def _order(self, job: Job) -> Order:
        """Put a job together with what this worker does not have yet."""
        device = job.task.device.id
        known = self.held.get(device) is job.data
        self.held[device] = job.data
        self.held.move_to_end(device)
        gone = [self.held.popitem(last=False)[0]] if len(self.held) > HELD else []
        return Order(job.task, job.memory, None if known else job.data, gone)


def _start(end: int) -> subprocess.Popen[bytes]:
    """Start a process that runs nothing of the caller's program, only this module."""
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    target = "dapperfl.sim.errands:serve"
    return start_child(target, end, environment=one, new_session=False)


class _RefusedError(Exception):
    """A worker cannot make sense of what it was sent."""


class _Once:
    """Says for all workers of a crew, but only once, that they cannot be used."""

    def __init__(self) -> None:
        self.lock, self.said = threading.Lock(), False

    def tell(self, error: Exception) -> None:
        with self.lock:
            if not self.said:
                logger.warning(
                    "worker processes cannot help, so one core does it all: %s; they need methods, "
                    "nets and data that are defined in a module they can import",
                    error,
                )
            self.said = True
