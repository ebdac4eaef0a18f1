"""The reference runner: clients one after another, each with its physically shrunk net.

This is the specification that faster runners are tested against: short, and never optimised.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Protocol, TypeVar

from torch import Tensor, nn

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
from dapperfl.runtime.frozen import FrozenNets
from dapperfl.runtime.local import Trade
from dapperfl.runtime.statistics import (
    batch_moments,
    finite,
    measure_moments,
    normalising_by_batch,
)
from dapperfl.runtime.training import ClientData, Trained, train_client
from dapperfl.sim.reasons import left_out

Answer = TypeVar("Answer")


class Runner(Protocol):
    """Runs the clients of a round; replies come one at a time, in the order of the work."""

    memories: MutableMapping[int, State]  # what each client keeps for itself

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        """Train every assigned model."""

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        """Measure batch-norm moments of the given models."""

    def looking_through(self, net: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return what runs a net of fixed mode on batches, for evaluation."""


class MakeRunner(Protocol):
    """Builds a runner for one run."""

    def __call__(self, trade: Trade, data: Mapping[int, ClientData], seed: int) -> Runner:
        """Return a runner that knows all but the work."""


@dataclass
class LoopRunner:
    """Runs one client at a time in this process."""

    trade: Trade
    data: Mapping[int, ClientData]
    seed: int
    memories: MutableMapping[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep a place for the nets of the statistics phase."""
        trade = self.trade
        self.nets = FrozenNets(
            trade.template, trade.precision, normalising_by_batch, turns=trade.turns
        )

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        """Train every assigned model; a client that fails is left out with its reason."""
        for assignment in assignments:
            device = assignment.device
            # A disk that loses a memory is this machine's trouble, and no reason to leave one out.
            work = with_memory(assignment, self.memories.get(device.id, {}))
            trained = answer(device, partial(self._train, work))
            if isinstance(trained, LeftOut):
                yield trained
            else:
                if trained.memory:
                    self.memories[device.id] = trained.memory
                yield trained.update

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        """Measure batch-norm moments of the given models."""
        for task in tasks:
            yield answer(task.device, partial(self._measure, task))

    def looking_through(self, net: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the net itself."""
        return net

    def _train(self, work: Work) -> Trained:
        return train_client(self.trade, work, self.data[work.device.id], seed=self.seed)

    def _measure(self, task: StatisticsTask) -> Moments:
        precision = self.trade.precision
        net, data = self.nets.holding(task.model), self.data[task.device.id]
        look = partial(batch_moments, net, precision=precision)
        return finite(measure_moments(net, task, data, look))


def with_memory(assignment: Assignment, memory: State) -> Work:
    """Put an assignment together with what its client remembers."""
    facts = {item.name: getattr(assignment, item.name) for item in fields(assignment)}
    return Work(**facts, memory=memory)


def answer(device: Device, work: Callable[[], Answer]) -> Answer | LeftOut:
    """Do a client's work; whatever goes wrong stays on the client, as on a real device."""
    try:
        return work()
    except Exception as error:
        # The border of a simulated device: on a real one this would be a crash or a silent radio.
        return left_out(device, error)
