"""Small worlds in which every method must keep its promises, and runners that look on."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tests.tiny import tiny_federation, tiny_net
from torch import Tensor, nn
from torch.nn.functional import pad

from dapperfl import methods, nets
from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    LeftOut,
    Moments,
    StatisticsTask,
)
from dapperfl.core.net import Batch
from dapperfl.core.state import State
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.methods.base import Method
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.loop import Runner
from dapperfl.sim.simulator import Simulator

TRAIN = TrainSettings(epochs=2, batch_size=4, lr=0.05)
SIDE = 8  # pixels: the least that all nets below take


def _built(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nets.build(name, num_classes=3, width=8)


NETS: dict[str, Callable[[], nn.Module]] = {
    "tiny": tiny_net,
    "convnet": lambda: _built("convnet"),
    "resnet10": lambda: _built("resnet10"),
    "mobilenetv2": lambda: _built("mobilenetv2"),
}


def federation(rhos: tuple[float, ...]) -> Federation:
    """Return the tiny federation with a frame around its pictures."""
    tiny = tiny_federation(rhos, samples=8)
    return replace(
        tiny,
        train={client: _framed(examples) for client, examples in tiny.train.items()},
        test={domain: _framed(examples) for domain, examples in tiny.test.items()},
    )


def _framed(examples: Examples) -> Examples:
    edge = SIDE - examples.images.shape[-1]
    return Examples(pad(examples.images, [0, edge, 0, edge]), examples.labels)


def world(
    method: Method | str,
    rhos: tuple[float, ...] = (0.0, 0.4, 0.5),
    *,
    net: str = "tiny",
    **settings: Any,
) -> Simulator:
    """Return a simulator with two rounds ahead of it."""
    if isinstance(method, str):
        method = methods.load(method)()
    settings = {"rounds": 2, "train": TRAIN, **settings}
    return Simulator(method=method, net=NETS[net](), federation=federation(rhos), **settings)


@dataclass
class Watched:
    """A runner that keeps what passes by; the last client may be the first to train and answer."""

    inside: Runner
    backwards: bool = False
    assignments: list[Assignment] = field(default_factory=list)
    updates: list[ClientUpdate] = field(default_factory=list)

    @property
    def memories(self) -> MutableMapping[int, State]:
        return self.inside.memories

    @memories.setter
    def memories(self, value: MutableMapping[int, State]) -> None:
        self.inside.memories = value

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        work = list(assignments)
        self.assignments += work
        replies = list(self.inside.train(reversed(work) if self.backwards else work))
        self.updates += [reply for reply in replies if isinstance(reply, ClientUpdate)]
        return iter(replies)

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        return self.inside.statistics(tasks)

    def looking_through(self, net: nn.Module) -> Callable[[Tensor], Tensor]:
        return self.inside.looking_through(net)


def watch(simulator: Simulator, *, backwards: bool = False) -> Watched:
    """Put a watched runner in a simulator."""
    simulator.runner = watched = Watched(simulator.runner, backwards)
    return watched


@dataclass(frozen=True)
class Broken:
    """The data of a client that drops out while it trains."""

    num_samples: int

    def epoch(self, rng: torch.Generator) -> Iterator[Batch]:
        raise ConnectionError("the battery is empty")

    def clean(self, batch_size: int) -> Iterator[Batch]:
        raise ConnectionError("the battery is empty")


def copied(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def assert_same(ours: State, theirs: State) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
