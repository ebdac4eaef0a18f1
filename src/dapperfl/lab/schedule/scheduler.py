"""Who runs next, where, and whether there is memory for it.

One loop: start what fits, hear what the workers say, until every job has an outcome.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from dapperfl.errors import ConfigError, DapperFLError
from dapperfl.lab.build import files_mark
from dapperfl.lab.config import Config, DataConfig, EngineConfig
from dapperfl.lab.continuing import (
    code_changed_since,
    finished_summary,
    tell_changed_pictures,
    tell_older_code,
)
from dapperfl.lab.schedule.jobs import Job, Outcome, Progress
from dapperfl.lab.schedule.memory import HOST, Memory, host_free, pools, room
from dapperfl.lab.schedule.process import Worker
from dapperfl.lab.schedule.worker import Failed, Finished, Message, Note, Rounds, Task

_log = logging.getLogger(__name__)

Show = Callable[[Progress | Outcome], object]
_PROCESSES_WITH_GPU = 16  # more only wait for each other
_SECONDS_TO_WAIT = 1.0  # then look whether the workers live


def run_all(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    devices: Sequence[str] | None = None,
    show: Show = lambda event: None,
) -> list[Outcome]:
    """Run every job, several at once as far as memory allows, and return how each one ended.

    A job that fails is an outcome with an error, never an exception. A folder that holds the
    finished run is read, one that holds a part of it is continued. A run that dies of memory, of a
    signal, or because the GPU takes no more processes, is tried once more when all others have
    ended, alone.

    Args:
        jobs: Each with a folder of its own.
        workers: Processes at most; as many as there are cores unless given. They share the threads
            that torch would use, so that the last bits of a run depend on this number.
        devices: Where jobs with `engine.device` "auto" or "cuda" run, dealt in turn; all GPUs, or
            the CPU where there is none, unless given.
        show: Is told how far each job is, and how it ended; see `display.watched_all`.

    Raises:
        ConfigError: the list itself is wrong: a folder twice, no worker, an unknown device.
    """
    _refuse_shared_folders(jobs)
    places = _checked(devices) if devices is not None else _all_devices()
    schedule = _Schedule(jobs, _limit(workers, places, len(jobs)), places, show)
    try:
        return schedule.run()
    finally:
        schedule.close()


def _refuse_shared_folders(jobs: Sequence[Job]) -> None:
    seen: dict[str, Job] = {}
    for job in jobs:
        other = seen.setdefault(os.path.abspath(job.out), job)
        if other is not job:
            raise ConfigError(
                f"{other.name} and {job.name} both write to {job.out}; give each its own folder"
            )


def _checked(devices: Sequence[str]) -> tuple[str, ...]:
    if not devices:
        raise ConfigError('devices = []: expected at least one, such as "cpu"')
    named = (EngineConfig(device=device).torch_device() for device in devices)
    return tuple("cuda:0" if device == "cuda" else device for device in named)


def _all_devices() -> tuple[str, ...]:
    if EngineConfig().torch_device() == "cpu":
        return ("cpu",)
    return tuple(f"cuda:{index}" for index in range(torch.cuda.device_count()))


def _limit(workers: int | None, places: Sequence[str], jobs: int) -> int:
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers}: expected at least 1")
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    usual = cores if places == ("cpu",) else min(cores, _PROCESSES_WITH_GPU)
    return max(1, min(workers or usual, jobs))


def _places(config: Config, devices: Sequence[str]) -> Sequence[str]:
    """Return the devices that a config may run on."""
    match config.engine.device:
        case "auto":
            return devices
        case "cuda":
            return [device for device in devices if device != "cpu"] or ["cuda:0"]
        case own:
            return [own]


class _Schedule:
    """The jobs by their index: waiting, with a worker, to be tried again, or ended."""

    def __init__(self, jobs: Sequence[Job], limit: int, devices: Sequence[str], show: Show) -> None:
        self.jobs, self.limit, self.devices, self.show = jobs, limit, devices, show
        # Not of the workers that run: a restarted list must compute the same.
        self.threads = max(1, torch.get_num_threads() // limit)
        self.waiting = list(range(len(jobs)))
        self.again: list[int] = []  # wait until all others have ended
        self.retried: set[int] = set()
        self.outcomes: dict[int, Outcome] = {}
        self.workers: list[Worker] = []
        self.peak: dict[str, int] = {}  # by kind of memory: host or cuda
        self.free: dict[str, int] = {}  # by device, when one of its workers last looked
        self.files: dict[tuple[str, str | None], str | None] = {}  # marks, by benchmark and root
        self.older: dict[Path, list[str]] = {}  # results of older code, by its file
        self.notes: dict[Note, list[str]] = {}  # the names of the runs that logged it

    def run(self) -> list[Outcome]:
        for index in list(self.waiting):
            self._look_for_results(index)
        tell_older_code(self.older)
        while len(self.outcomes) < len(self.jobs):
            self._admit()
            self._hear()
        self._tell_repeated()
        return [self.outcomes[index] for index in range(len(self.jobs))]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def _look_for_results(self, index: int) -> None:
        job = self.jobs[index]
        try:
            summary = finished_summary(job.config, job.out)
        except (DapperFLError, OSError) as error:
            self._end(index, error=str(error))
        else:
            if summary is not None:
                tell_changed_pictures(job.config, job.out, self._files)
                for file in code_changed_since(job.config, job.out):
                    self.older.setdefault(file, []).append(job.name)
                self._end(index, summary)

    def _files(self, data: DataConfig) -> str | None:
        """Look at the files of pictures, which may be many, once for all runs on them."""
        key = data.benchmark, data.root
        if key not in self.files:
            self.files[key] = files_mark(data)
        return self.files[key]

    def _end(
        self, index: int, summary: Mapping[str, Any] | None = None, error: str | None = None
    ) -> None:
        if index in self.waiting:
            self.waiting.remove(index)
        self.outcomes[index] = Outcome(self.jobs[index], summary, error)
        self.show(self.outcomes[index])

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.busy]

    def _admit(self) -> None:
        """Start what fits, with an idle worker or a new one; end the workers that stay idle."""
        if not self.waiting and not self._busy() and self.again:
            self._dismiss_idle()  # all memory for the one that had too little
            self.waiting.append(self.again.pop(0))
        for index in list(self.waiting):
            device = self._device_with_room(index)
            if device is not None:
                self.waiting.remove(index)
                self._begin(index, device)
        self._dismiss_idle()

    def _device_with_room(self, index: int) -> str | None:
        busy = [worker.device for worker in self._busy()]
        if len(busy) >= self.limit:
            return None
        allowed = _places(self.jobs[index].config, self.devices)
        for device in sorted(allowed, key=busy.count):
            if all(self._room(pool) for pool in pools(device)):
                return device
        return None

    def _room(self, pool: str) -> int:
        """Return how many more runs fit into a memory; idle workers give theirs back."""
        held, idle = [], 0
        for worker in self.workers:
            now = worker.memory[pool].now if pool in worker.memory else 0
            if not worker.busy:
                idle += now
            elif pool in pools(worker.device):
                held.append(now)
        free = host_free() if pool == HOST else self.free.get(pool, 0)
        return room(free + idle, self.peak.get(_kind(pool)), held)

    def _begin(self, index: int, device: str) -> None:
        idle = [each for each in self.workers if not each.busy and each.device == device]
        worker = idle[0] if idle else Worker(device, -(-self.limit // len(self.devices)))
        if not idle:
            self.workers.append(worker)
        job = self.jobs[index]
        level = logging.getLogger("dapperfl").getEffectiveLevel()
        self.show(Progress(job, device))
        config = replace(job.config, engine=self._engine(job.config.engine, device))
        worker.begin(index, Task(config, job.out, device, self.threads, level))

    def _engine(self, asked: EngineConfig, device: str) -> EngineConfig:
        """Bind a run to its device, and on a CPU to its share of the cores."""
        share = self.threads if device == "cpu" else None
        return replace(asked, device=device, workers=asked.workers or share)

    def _dismiss_idle(self) -> None:
        for worker in [worker for worker in self.workers if not worker.busy]:
            self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        worker.close()
        self.workers.remove(worker)

    def _hear(self) -> None:
        wait([each for worker in self.workers for each in worker.sources()], _SECONDS_TO_WAIT)
        for worker in list(self.workers):
            messages, alive = worker.messages()
            name = self.jobs[worker.job].name
            for text in worker.output():
                _log.warning("%s: %s", name, text)
            for message in messages:
                self._take(worker, message)
            if not alive:
                self._bury(worker)

    def _take(self, worker: Worker, message: Message) -> None:
        index, job = worker.job, self.jobs[worker.job]
        match message:
            case Note():
                self._pass_on(message, job.name)
            case Rounds(number, last, best, seconds, memory):
                self._learn(worker, memory)
                self.show(Progress(job, worker.device, number, last, best, seconds))
            case Finished(summary, memory):
                self._learn(worker, memory)
                worker.busy = False
                self._end(index, summary)
            case Failed():
                worker.busy = False
                self._fail(worker, index, message)

    def _pass_on(self, note: Note, name: str) -> None:
        """Log what a run says; what others say as well, as all do of odd pictures, only once."""
        names = self.notes.setdefault(note, [name])
        if names[0] == name:
            _log.log(note.level, "%s: %s", name, note.text)
        elif name not in names:
            names.append(name)

    def _tell_repeated(self) -> None:
        """Say of how many more runs something was said that was shown of the first."""
        for note, (first, *others) in self.notes.items():
            if others:
                _log.log(note.level, "%s, and %d more: %s", first, len(others), note.text)

    def _learn(self, worker: Worker, memory: Mapping[str, Memory]) -> None:
        worker.memory |= memory
        for pool, found in memory.items():
            self.peak[_kind(pool)] = max(found.peak, self.peak.get(_kind(pool), 0))
            self.free[pool] = found.free

    def _fail(self, worker: Worker, index: int, failed: Failed) -> None:
        if failed.no_room:
            self._once_more(index, failed.error)
        else:
            if failed.traceback:
                _log.error("%s: %s", self.jobs[index].name, failed.traceback)
            self._end(index, error=failed.error)
        if failed.no_room or failed.traceback:
            self._dismiss(worker)  # nobody knows what state it is in

    def _once_more(self, index: int, error: str) -> None:
        if index in self.retried:
            self._end(index, error=error)
            return
        self.retried.add(index)
        self.again.append(index)
        _log.warning(
            "%s: %s; it is tried again, alone, after the others", self.jobs[index].name, error
        )

    def _bury(self, worker: Worker) -> None:
        if worker not in self.workers:
            return  # it failed, and was dismissed
        reason, by_signal = worker.cause_of_death()
        self._dismiss(worker)
        if worker.busy and by_signal:
            self._once_more(worker.job, reason)
        elif worker.busy:
            self._end(worker.job, error=reason)


def _kind(pool: str) -> str:
    return pool.partition(":")[0]
