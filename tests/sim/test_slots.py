"""Whole rounds in slots that are filled, copied and cut end to end, as on a GPU."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.sim.test_graphs import assert_alike, rounds

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


def test_nor_do_they_where_nets_hold_channels_last(monkeypatch):
    def turned(trade: Trade, *facts: Any) -> GraphRunner:
        return GraphRunner(replace(trade, channels_last=True), *facts)

    plain = rounds(DapperFL(), turned)
    monkeypatch.setattr(flat, "KINDS", frozenset({"cpu"}))
    assert_alike(rounds(DapperFL(), turned), plain, 0.0)
