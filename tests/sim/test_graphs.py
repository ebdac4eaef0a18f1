"""The graph runner is the loop: without a GPU to the last bit, on one within rounding."""

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from tests.contracts.worlds import Broken, federation
from tests.tiny import tiny_net
from torch import nn
from torch.nn.functional import dropout

from dapperfl import methods
from dapperfl.core.messages import LocalModel, Report
from dapperfl.core.state import State
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.methods.nefl import NeFL
from dapperfl.runtime.local import Trade
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.precision import Precision, set_arithmetic
from dapperfl.sim import slots
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import RoundRecord, Simulator
from dapperfl.sim.slot import Slot, _tell_refused

TRAIN = TrainSettings(epochs=3, batch_size=4, lr=0.05, weight_decay=1e-3)
RHOS = (0.0, 0.4, 0.5, 0.4)
VARIANTS = [(name, preset) for name in methods.names() for preset in methods.load(name).presets]
RUNNERS = (GraphRunner, LoopRunner)
gpu = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _forget_what_was_told() -> None:
    _tell_refused.cache_clear()


@pytest.fixture(params=["cpu", gpu])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        set_arithmetic("fp32")
    return str(request.param)


def rounds(
    method: Method, runner: Any, device: str = "cpu", *, net: Callable[[], nn.Module] = tiny_net,
    precision: Precision = "fp32", **changes: Any
) -> list[RoundRecord]:  # fmt: skip
    settings = {"federation": federation(RHOS), "train": TRAIN, "rounds": 2, **changes}
    world = Simulator(
        method=method, net=net(), device=device, runner=runner, precision=precision, **settings
    )
    return list(world.rounds())


def everything(record: RoundRecord) -> State:
    server, memories = record.snapshot.server, record.snapshot.memories
    kept = {f"{client}/{name}": t for client, m in memories.items() for name, t in m.items()}
    return server.weights | {f"extra/{name}": t for name, t in server.extra.items()} | kept


def assert_alike(ours: list[RoundRecord], theirs: list[RoundRecord], tolerance: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.costs == other.costs
        assert [each.device for each in mine.left_out] == [each.device for each in other.left_out]
        assert mine.loss == pytest.approx(other.loss, rel=max(tolerance, 1e-12))
        mine_state, other_state = everything(mine), everything(other)
        assert mine_state.keys() == other_state.keys()
        for name, tensor in mine_state.items():
            if tensor.is_floating_point():
                scale = float(other_state[name].abs().max())
                far = float((tensor - other_state[name]).abs().max())
                assert far <= tolerance * scale, name
            else:
                assert torch.equal(tensor, other_state[name]), name


def tolerance(device: str) -> float:
    return 0.0 if device == "cpu" else 1e-4


@pytest.mark.parametrize(("name", "preset"), VARIANTS, ids=[f"{n}:{p}" for n, p in VARIANTS])
def test_every_method_gives_what_the_loop_gives(name, preset, device):
    method = methods.load(name).from_preset(preset)
    ours, theirs = (rounds(method, runner, device) for runner in RUNNERS)
    assert_alike(ours, theirs, tolerance(device))


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_the_number_of_branches_changes_nothing(branches, device):
    runner = partial(GraphRunner, branches=branches)
    ours = rounds(DapperFL(scope="all"), runner, device)
    theirs = rounds(DapperFL(scope="all"), LoopRunner, device)
    assert_alike(ours, theirs, tolerance(device))


def test_shifted_statistics_are_the_loops(device):
    train = replace(TRAIN, shift=0.7)
    ours, theirs = (rounds(DapperFL(), runner, device, train=train) for runner in RUNNERS)
    assert_alike(ours, theirs, tolerance(device))
    plain = rounds(DapperFL(), LoopRunner, device)
    assert plain[-1].loss != theirs[-1].loss


class Dropping(nn.Module):
    """Two kinds of layers that draw: dropout as a function and as a module."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.fc = nn.Conv2d(3, 16, 3), nn.Linear(16, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.fc(dropout(self.drop(self.conv(x)).mean((2, 3)), 0.5, self.training))


def test_dropout_draws_what_it_draws_in_the_loop(device):
    method = DapperFL(scope="all", multiple=1)
    ours, theirs = (
        rounds(method, runner, device, net=Dropping) for runner in (GraphRunner, LoopRunner)
    )
    assert_alike(ours, theirs, tolerance(device))


class Skips(nn.Module):
    """Skips a layer and its norm at random, by the generator of Python, numpy or torch."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.more, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        z = self.conv(x).mean((2, 3))
        if not self.training or self.draw() < 0.5:
            z = z + self.norm(self.more(z)).relu()
        return self.fc(z)


def drawn_by_python() -> float:
    return random.random()


def drawn_by_numpy() -> float:
    return numpy.random.random()


def drawn_by_torch() -> float:
    return torch.rand(()).item()


@pytest.mark.parametrize("method", [DapperFL(), NeFL()])  # NeFL hands on what norms have counted
@pytest.mark.parametrize("draw", [drawn_by_python, drawn_by_numpy, drawn_by_torch])
def test_what_a_net_skips_by_is_the_clients_own(draw, method, device):
    train = replace(TRAIN, epochs=2, batch_size=2)
    ours, again, theirs = (
        rounds(method, runner, device, net=partial(Skips, draw), train=train,
               federation=federation((0.0, 0.0, 0.0)))
        for runner in (GraphRunner, GraphRunner, LoopRunner)
    )  # fmt: skip
    assert_alike(ours, theirs, tolerance(device))
    assert_alike(ours, again, 0.0)


class Tied(nn.Module):
    """One convolution under two names."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 3)
        self.second = self.first

    def forward(self, x):
        return self.fc(self.second(self.first(x).relu()).mean((2, 3)))


@pytest.mark.parametrize("method", [FedAvg(), DapperFL()])
def test_tied_weights_stay_tied(method, device):
    world = federation((0.0, 0.0))
    ours, theirs = (
        rounds(method, runner, device, net=Tied, federation=world) for runner in RUNNERS
    )
    assert_alike(ours, theirs, tolerance(device))
    weights = ours[-1].snapshot.server.weights
    assert torch.equal(weights["first.weight"], weights["second.weight"])


@dataclass(frozen=True, kw_only=True)
class ReadsTheRound(FedAvg):
    """Its loss depends on a number that changes from round to round."""

    def loss(self, net, batch, work):
        return super().loss(net, batch, work) * work.round_num


@dataclass(frozen=True, kw_only=True)
class ReadsTheSubmodel(FedAvg):
    """Its loss depends on the assigned submodel."""

    def loss(self, net, batch, work):
        return super().loss(net, batch, work) * (1 + len(work.model.submodel.kept))


@dataclass(frozen=True, kw_only=True)
class ThrowsACoin(FedAvg):
    """Its loss depends on a random number of Python's own."""

    def loss(self, net, batch, work):
        return super().loss(net, batch, work) * random.Random(len(batch.y)).choice([1, 2])


@dataclass(frozen=True, kw_only=True)
class Remembers(FedAvg):
    """Its loss depends on a number on the CPU that the client keeps."""

    def loss(self, net, batch, work):
        return super().loss(net, batch, work) / (1 + work.memory.get("seen", torch.tensor(0.0)))

    def report(self, net, batches, work):
        return Report(memory={"seen": work.memory.get("seen", torch.tensor(0.0)) + 1})


@dataclass(frozen=True, kw_only=True)
class Waits(FedAvg):
    """Its loss looks at a number of the GPU."""

    def loss(self, net, batch, work):
        loss = super().loss(net, batch, work)
        return loss * 2 if float(loss.detach()) > 1 else loss


@dataclass(frozen=True, kw_only=True)
class Synchronises(FedAvg):
    """Its loss waits for the GPU in a way that only a recording finds out."""

    def loss(self, net, batch, work):
        if batch.x.is_cuda:
            torch.cuda.synchronize()
        return super().loss(net, batch, work)


@pytest.mark.parametrize(
    "method", [ReadsTheRound, ReadsTheSubmodel, ThrowsACoin, Remembers, Waits, Synchronises]
)
def test_what_cannot_be_recorded_is_run_as_it_is(method, device, caplog):
    caplog.set_level(logging.WARNING)
    ours, theirs = (rounds(method(), runner, device) for runner in (GraphRunner, LoopRunner))
    assert_alike(ours, theirs, tolerance(device))
    told = [each for each in caplog.messages if "not recorded" in each]
    refused = device == "cuda" and method is not ThrowsACoin
    assert len(told) == int(refused)


def test_a_step_is_recorded_the_second_time_it_is_seen():
    made = []

    def runner(*facts: Any) -> GraphRunner:
        made.append(GraphRunner(*facts))
        return made[-1]

    rounds(FedAvg(), runner)
    (slot,) = [slot for each in made[0].slots.idle.values() for slot in each][:1]
    (recorded,) = slot.recorded.values()
    assert recorded.steps
    assert all(step.play is not None for step in recorded.steps.values())
    assert not recorded.parts  # the loss reads nothing of the work, so nothing is copied


def test_slots_grow_with_shapes_and_branches_not_with_clients():
    made = []

    def runner(trade: Trade, data: Any, seed: int) -> GraphRunner:
        made.append(GraphRunner(trade, data, seed, branches=2))
        return made[-1]

    rounds(DapperFL(scope="all"), runner, federation=federation((0.0, 0.5) * 3))
    held = {key: len(slots) for key, slots in made[0].slots.idle.items()}
    assert len(held) == 2
    assert all(count <= 2 for count in held.values())


@dataclass(frozen=True, kw_only=True)
class Wanders(DapperFL):
    """Cuts to another shape in every round."""

    def after_epoch(self, epoch, local, work):
        kept = self.prune(local, 0.1 * (work.round_num % 7))
        return LocalModel(kept.slice(local.weights), kept)


@pytest.mark.parametrize("limit", [1, 3, 4])
def test_slots_do_not_grow_with_rounds_where_each_has_other_shapes(limit, monkeypatch):
    monkeypatch.setattr(slots, "IDLE", limit)
    method, made = Wanders(dense="full", scope="all", multiple=1), []

    def runner(trade: Trade, data: Any, seed: int) -> GraphRunner:
        made.append(GraphRunner(trade, data, seed, branches=2))
        return made[-1]

    changes: dict[str, Any] = {"federation": federation((0.4,) * 3), "rounds": 6}
    ours, theirs = (rounds(method, each, **changes) for each in (runner, LoopRunner))
    assert_alike(ours, theirs, 0.0)
    idle = made[0].slots.idle.values()
    assert sum(map(len, idle)) == limit
    assert all(idle)


@dataclass(frozen=True, kw_only=True)
class Misshapes(FedAvg):
    """Sends one device a counter of a shape that its net does not have."""

    def assign(self, server, device, epochs, dice):
        asked = super().assign(server, device, epochs, dice)
        if asked is None or device.id != 1:
            return asked
        name = next(n for n in asked.model.weights if n.endswith("num_batches_tracked"))
        wrong = {**asked.model.weights, name: asked.model.weights[name].view(1)}
        return replace(asked, model=replace(asked.model, weights=wrong))


def test_a_client_that_cannot_begin_gives_its_slot_back(monkeypatch):
    built = []

    def slot(*facts: Any) -> Slot:
        built.append(Slot(*facts))
        return built[-1]

    monkeypatch.setattr(slots, "Slot", slot)
    *_, last = rounds(Misshapes(), GraphRunner, federation=federation((0.0,) * 3), rounds=4)
    assert [out.device.id for out in last.left_out] == [1]
    assert len(built) == 2  # the first device's, and one that the others take in turn


def test_a_client_that_fails_is_left_out_and_its_slot_goes_on(device):
    def records(runner: Any) -> list[RoundRecord]:
        world = Simulator(
            method=DapperFL(scope="all"),
            net=tiny_net(),
            federation=federation(RHOS),
            train=TRAIN,
            rounds=3,
            device=device,
            runner=runner,
        )
        world.runner.data = {**world.data, 1: Broken(8)}  # type: ignore[attr-defined]
        return list(world.rounds())

    ours, theirs = records(GraphRunner), records(LoopRunner)
    assert_alike(ours, theirs, tolerance(device))
    (out,) = ours[0].left_out
    assert out.reason.startswith("the battery is empty (worlds.py:")


def test_a_client_that_does_not_stay_finite_is_left_out():
    settings = replace(TRAIN, lr=1e30)
    with pytest.raises(Exception, match="nobody took part"):
        rounds(FedAvg(), GraphRunner, train=settings, rounds=4)


def replies(device: str) -> Iterator[Precision]:
    yield from ("tf32", "bf16") if device == "cuda" else ("bf16",)


def test_lower_precisions_stay_near(device):
    """Three digits of mantissa in bf16: weights agree within a few per cent of their range."""
    exact = rounds(FedAvg(), LoopRunner, device)[-1].snapshot.server.weights
    for precision in replies(device):
        near = rounds(FedAvg(), GraphRunner, device, precision=precision)[-1]
        for name, tensor in near.snapshot.server.weights.items():
            if tensor.is_floating_point():
                scale = float(exact[name].abs().max())
                assert float((tensor - exact[name]).abs().max()) <= 0.1 * scale, name
