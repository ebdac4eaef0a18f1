"""Whole rounds in slots that are filled, copied and cut end to end, as on a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.contracts.worlds import federation
from tests.sim.test_graphs import assert_alike, rounds
from tests.tiny import tiny_net
from torch import Tensor, nn

from dapperfl.core import flat
from dapperfl.core.messages import LocalModel
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.runtime.local import Trade
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.loop import LoopRunner


@dataclass(frozen=True, kw_only=True)
class CutsTwice(DapperFL):
    """Cuts again after the second epoch: from small to smaller."""

    def acts_after(self, epoch):
        return epoch <= 2

    def after_epoch(self, epoch, local, work):
        if epoch == 1:
            return super().after_epoch(epoch, local, work)
        full = local.submodel.graph.full()
        zeros = {n: torch.zeros(s) for n, s in full.shapes.items()}
        kept = self.prune(LocalModel(local.submodel.scatter(local.weights, zeros), full), 0.6)
        whole = local.submodel.scatter(local.weights, {n: work.model.weights[n] for n in zeros})
        return LocalModel(kept.slice(whole), kept)


METHODS = {
    "default": DapperFL(),
    "paper": DapperFL.from_preset("paper"),
    "after a batch": DapperFL(dense="batches", dense_batches=1, scope="all", multiple=1),
    "twice": CutsTwice(scope="all", multiple=1),
    "never": FedAvg(),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_states_laid_end_to_end_change_no_bit(method, monkeypatch):
    theirs = rounds(method, LoopRunner)
    monkeypatch.setattr(flat, "KINDS", frozenset({"cpu"}))
    assert_alike(rounds(method, GraphRunner), theirs, 0.0)


class Averages(nn.Module):
    """Puts new tensors in the places of its buffers and of a weight, as many do for a mean."""

    mean: Tensor
    table: Tensor

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.book, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("table", torch.zeros(4), persistent=False)

    def forward(self, x):
        z = self.conv(x).mean((2, 3))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
            self.table = self.table + 1
            out = self.fc(self.book(z - self.mean)) * self.table.mean()
            self.book.weight = nn.Parameter(0.9 * self.book.weight + 0.1 * self.mean)
            return out
        return self.fc(self.book(z - self.mean))


@pytest.mark.parametrize("kinds", [frozenset(), frozenset({"cpu"})])
def test_tensors_that_a_net_puts_in_the_places_of_its_own_are_kept(kinds, monkeypatch):
    world = federation((0.0, 0.0))
    theirs = rounds(FedAvg(), LoopRunner, net=Averages, federation=world)
    monkeypatch.setattr(flat, "KINDS", kinds)
    ours = rounds(FedAvg(), GraphRunner, net=Averages, federation=world)
    assert_alike(ours, theirs, 0.0)
    before, after = Averages().state_dict(), ours[-1].snapshot.server.weights
    assert all(not torch.equal(after[name], before[name]) for name in ("mean", "book.weight"))


class Cools(nn.Module):
    """Has a temperature that falls with every batch, and notes the size of its features."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
        self.heat, self.size = 2.0, None

    def forward(self, x):
        z = self.conv(x).relu()
        self.size = z.shape[-1]
        if self.training:
            self.heat *= 0.9
        return self.fc(z.mean((2, 3))) / self.heat


@pytest.mark.parametrize("method", [FedAvg(), DapperFL(), DapperFL.from_preset("paper")])
def test_every_client_begins_with_the_nets_own_numbers(method):
    world = federation((0.0, 0.2, 0.0))
    ours, theirs = (
        rounds(method, runner, net=Cools, federation=world) for runner in (GraphRunner, LoopRunner)
    )
    assert_alike(ours, theirs, 0.0)


class Remembers(Cools):
    """Holds a mean, a list and a generator of its own, and a tensor that it makes while it runs."""

    def __init__(self):
        super().__init__()
        self.mean, self.past = torch.zeros(4), [torch.zeros(4)]
        self.rng = torch.Generator().manual_seed(1)

    def forward(self, x):
        z = self.conv(x).mean((2, 3))
        if self.training:
            now = z.detach().mean(0)
            self.mean = 0.9 * self.mean + 0.1 * now
            self.past.append(now)
            if not hasattr(self, "first"):
                self.first = now
            z = z - self.mean - self.first - torch.rand(4, generator=self.rng)
        return self.fc(z - torch.stack(self.past[-3:]).mean(0))


def test_every_client_begins_with_what_the_net_held_at_first():
    world = federation((0.0, 0.0, 0.0))
    ours, theirs = (
        rounds(FedAvg(), runner, net=Remembers, federation=world)
        for runner in (GraphRunner, LoopRunner)
    )
    assert_alike(ours, theirs, 0.0)


@pytest.mark.parametrize(("kind", "refused"), [(Cools, True), (Averages, True), (tiny_net, False)])
def test_a_step_that_moves_more_than_tensors_is_not_recorded(kind, refused, monkeypatch):
    def run_once(step: Callable[[], None], pool: Any) -> Callable[[], None]:
        step()  # as a recording does
        return step

    monkeypatch.setattr("dapperfl.sim.slot.record", run_once)
    made = []

    def runner(*facts: Any) -> GraphRunner:
        made.append(GraphRunner(*facts))
        return made[-1]

    rounds(FedAvg(), runner, net=kind, federation=federation((0.0,)), rounds=1)
    (slot,) = made[0].slots.idle[next(iter(made[0].slots.idle))]
    (recorded,) = slot.recorded.values()
    assert {step.refused for step in recorded.steps.values()} == {refused}


def test_nor_do_they_where_nets_hold_channels_last(monkeypatch):
    monkeypatch.setattr(Trade, "turned", True)
    plain = rounds(DapperFL(), GraphRunner)
    monkeypatch.setattr(flat, "KINDS", frozenset({"cpu"}))
    assert_alike(rounds(DapperFL(), GraphRunner), plain, 0.0)
