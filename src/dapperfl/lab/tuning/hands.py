"""Who tries a config: this very process, or one of several others.

A hand does one trial at a time and says how each round went; whoever hears it may stop the trial.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait

import torch

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config, EngineConfig
from dapperfl.lab.tuning.judging import Broken, Judge, Message, Step
from dapperfl.runtime.children import start_child


class Here:
    """Tries configs in this process, a round whenever it is heard."""

    link = None

    def __init__(self) -> None:
        self._judge = Judge()
        self._messages: Iterator[Message] = iter(())

    def begin(self, config: Config, seeds: Sequence[int]) -> None:
        """Take on a trial."""
        self._messages = self._judge.judge(config, seeds)

    def hear(self) -> Message:
        """Return what happens next."""
        return next(self._messages)

    def answer(self, go_on: bool) -> None:
        """Say whether the trial goes on after a round."""
        if not go_on:
            self._messages = iter(())

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(frozen=True)
class Task:
    """A trial for another process."""

    config: Config
    seeds: tuple[int, ...]
    threads: int


class Elsewhere:
    """Tries configs in a process of its own, which is started when first needed."""

    def __init__(self, device: str | None, threads: int) -> None:
        self._device, self._threads = device, threads
        self._process: subprocess.Popen[bytes] | None = None
        self.link: Connection | None = None

    def begin(self, config: Config, seeds: Sequence[int]) -> None:
        """Take on a trial."""
        if self.link is None:
            self._start()
        assert self.link is not None
        config = replace(config, engine=self._engine(config.engine))
        with suppress(OSError):  # a process that has died is found out by `hear`
            self.link.send(Task(config, tuple(seeds), self._threads))

    def _engine(self, asked: EngineConfig) -> EngineConfig:
        """Bind a trial to its GPU, or to its share of the cores."""
        if self._device is not None:
            return replace(asked, device=self._device)
        on_cpu = asked.torch_device() == "cpu"
        return replace(asked, workers=asked.workers or self._threads) if on_cpu else asked

    def _start(self) -> None:
        self.link, theirs = Pipe()
        with theirs:
            self._process = start_child(
                "dapperfl.lab.tuning.hands:serve", theirs.fileno(), stdout=subprocess.DEVNULL
            )

    def hear(self) -> Message:
        """Return what it says; of a process that is gone, how it ended."""
        assert self.link is not None
        assert self._process is not None
        try:
            message: Message = self.link.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            self.close()
            how = f"died with signal {-code}" if code < 0 else f"ended with code {code}"
            return Broken(f"the process that tried it {how}")
        return message

    def answer(self, go_on: bool) -> None:
        """Say whether the trial goes on after a round."""
        assert self.link is not None
        with suppress(OSError):
            self.link.send(go_on)

    def close(self) -> None:
        """End the process and whatever it started, at once."""
        if self._process is not None and self.link is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.link.close()
        self._process = self.link = None


Hand = Here | Elsewhere


@contextmanager
def crew(workers: int, config: Config) -> Iterator[list[Hand]]:
    """Provide as many hands as there are workers; GPUs are dealt to them in turn."""
    if workers < 1:
        raise ConfigError(f"workers = {workers}: expected at least 1")
    hands: list[Hand] = [Here()]
    if workers > 1:
        gpus = torch.cuda.device_count() if config.engine.device == "auto" else 0
        threads = max(1, torch.get_num_threads() // workers)
        hands = [
            Elsewhere(f"cuda:{index % gpus}" if gpus else None, threads) for index in range(workers)
        ]
    try:
        yield hands
    finally:
        for hand in hands:
            hand.close()


def ready(hands: Sequence[Hand]) -> list[Hand]:
    """Wait until some of the busy hands have something to say, and return those."""
    links = {id(hand.link): hand for hand in hands if hand.link is not None}
    if not links:
        return list(hands)
    spoke = wait([hand.link for hand in hands if hand.link is not None])
    return [links[id(link)] for link in spoke]


def serve(handle: int) -> None:
    """Do trials until the pipe is closed, because the parent wants it or was killed."""
    logging.basicConfig(level=logging.ERROR)  # what goes wrong is told to the parent
    link, judge = Connection(handle), Judge()
    with suppress(EOFError, OSError):
        while True:
            task: Task = link.recv()
            torch.set_num_threads(task.threads)
            for message in judge.judge(task.config, task.seeds):
                link.send(message)
                if isinstance(message, Step) and not link.recv():
                    break
    os._exit(0)
