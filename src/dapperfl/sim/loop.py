"""The reference runner: clients one after another, each with its physically shrunk net.

This is the specification that faster runners are tested against: short, and never optimised.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Protocol, TypeVar

from torch import nn

from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    Device,
    LeftOut,
    Moments,
    StatisticsTask,
    Work,
)
from dapperfl.core.state import State
from dapperfl.methods.base import Method
from dapperfl.runtime.statistics import measure_moments
from dapperfl.runtime.training import ClientData, TrainSettings, train_client

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Runner(Protocol):
    """Runs the clients of a round; replies come one at a time, in the order of the work."""

    memories: dict[int, State]  # what each client keeps for itself

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        """Train every assigned model."""

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        """Measure batch-norm moments of the given models."""


@dataclass
class LoopRunner:
    """Runs one client at a time in this process."""

    method: Method
    net: nn.Module  # the full net, as a template
    data: Mapping[int, ClientData]
    settings: TrainSettings
    seed: int
    memories: dict[int, State] = field(default_factory=dict)

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        """Train every assigned model; a client that fails is left out with its reason."""
        for assignment in assignments:
            yield _answer(assignment.device, partial(self._train, assignment))

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        """Measure batch-norm moments of the given models."""
        for task in tasks:
            data = self.data[task.device.id]
            yield _answer(task.device, partial(measure_moments, self.net, task, data))

    def _train(self, assignment: Assignment) -> ClientUpdate:
        client = assignment.device.id
        facts = {item.name: getattr(assignment, item.name) for item in fields(assignment)}
        work = Work(**facts, memory=self.memories.get(client, {}))
        trained = train_client(
            self.method, self.net, work, self.data[client], settings=self.settings, seed=self.seed
        )
        if trained.memory:
            self.memories[client] = trained.memory
        return trained.update


def _answer(device: Device, work: Callable[[], Answer]) -> Answer | LeftOut:
    """Do a client's work; whatever goes wrong stays on the client, as on a real device."""
    try:
        return work()
    except Exception as error:
        # The border of a simulated device: on a real one this would be a crash or a silent radio.
        logger.debug("device %d failed", device.id, exc_info=True)
        kind = "" if str(error) else type(error).__name__
        return LeftOut(device, f"{kind}{error}".splitlines()[0])
