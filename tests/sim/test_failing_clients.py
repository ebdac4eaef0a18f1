"""A client that fails is left out on any engine, and what is left of it changes no other one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.contracts.worlds import federation, watch
from tests.sim.test_graphs import TRAIN, assert_alike, rounds
from tests.tiny import tiny_net
from torch import Tensor

from dapperfl.core.messages import LocalModel, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.state import State
from dapperfl.data.benchmark import Examples
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.sim.cpu import CpuRunner
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import Simulator

ENGINES = [
    partial(GraphRunner, branches=1),
    GraphRunner,
    partial(CpuRunner, workers=1),
    partial(CpuRunner, workers=1, exact=False),
]
NAMES = ["one after another", "side by side", "cpu", "cpu, as fast as can be"]


@dataclass(frozen=True, kw_only=True)
class Stumbles(FedAvg):
    """Fails in the third step of a client, whose size it has seen before."""

    client: int = 1
    seen: list[int] = field(default_factory=list)

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        self.seen.append(work.device.id)
        if work.device.id == self.client and self.seen.count(self.client) == 3:
            raise RuntimeError("a strange picture")
        return super().loss(net, batch, work)


def counted(engine: Any) -> list[tuple[int, int]]:
    """Return how many batches the norms of each update have counted."""
    world = Simulator(
        method=Stumbles(),
        net=tiny_net(),
        federation=federation((0.0,) * 4),
        train=TRAIN,
        rounds=1,
        runner=engine,
    )
    updates = watch(world).updates
    list(world.rounds())
    name = "bn1.num_batches_tracked"
    return [(each.device.id, int(each.model.weights[name])) for each in updates]


def test_batches_of_a_client_that_failed_are_not_counted_for_the_next():
    found = counted(ENGINES[0])
    assert [device for device, _ in found] == [0, 2, 3]
    assert found == counted(LoopRunner)


def shorter(weights: State) -> State:
    return weights | {"conv1.weight": torch.zeros(1, 2, 3, 3)}


def spreadable(weights: State) -> State:
    return weights | {"conv1.weight": torch.zeros(1, 1, 1, 1)}


def one_more(weights: State) -> State:
    return weights | {"conv3.weight": torch.zeros(1)}


def one_less(weights: State) -> State:
    return {name: tensor for name, tensor in weights.items() if name != "fc.bias"}


@dataclass(frozen=True, kw_only=True)
class Confused(DapperFL):
    """Makes something of one client's weights that no net can take."""

    spoil: Callable[[State], State]

    def after_epoch(self, epoch: int, local: LocalModel, work: Work) -> LocalModel:
        after = super().after_epoch(epoch, local, work)
        first = work.device.id == 1 and work.round_num == 1
        return LocalModel(self.spoil(after.weights), after.submodel) if first else after


@pytest.mark.parametrize("engine", ENGINES[:3], ids=NAMES[:3])
@pytest.mark.parametrize("spoil", [shorter, spreadable, one_more, one_less])
def test_a_hook_that_spoils_one_model_spoils_no_other(engine, spoil):
    method = Confused(spoil=spoil, dense="full", scope="all", multiple=1)
    changes: dict[str, Any] = {"federation": federation((0.4,) * 4)}
    ours, theirs = (rounds(method, runner, **changes) for runner in (engine, LoopRunner))
    assert [len(record.left_out) for record in theirs] == [1, 0]
    assert_alike(ours, theirs, 0.0)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_client_without_pictures_is_left_out(engine):
    world = federation((0.0, 0.4, 0.5))
    first, *others = world.train.items()
    none = Examples(first[1].images[:0], first[1].labels[:0])
    for train in (dict(others), {first[0]: none, **dict(others)}):
        (record,) = rounds(FedAvg(), engine, federation=replace(world, train=train), rounds=1)
        assert [out.device.id for out in record.left_out] == [0]
        assert list(record.costs) == [1, 2]


def test_the_first_client_may_fail_while_the_fastest_way_is_tried(caplog):
    caplog.set_level("INFO")
    (record,) = rounds(Stumbles(client=0), ENGINES[-1], rounds=1)
    assert record.left_out == ()  # it fails once only
    assert "chosen for this net" in caplog.text
