"""Mistakes in the hooks of a method of one's own are named where they are made."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.contracts.worlds import TRAIN, federation
from tests.tiny import tiny_net

from dapperfl.core.messages import LocalModel, Report
from dapperfl.methods.base import Method
from dapperfl.sim.cpu import CpuRunner
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import RoundRecord, Simulator


@dataclass(frozen=True, kw_only=True)
class Shares(Method):
    """Sends a tensor to all, which hooks could spoil."""

    def assign(self, server, device, epochs, dice):
        asked = super().assign(server, device, epochs, dice)
        return asked and replace(asked, shared={"k": torch.ones(2)})


class SpoilsShared(Shares):
    def loss(self, net, batch, work):
        work.shared["k"].add_(1)
        return super().loss(net, batch, work)


class SpoilsWeights(Method):
    def after_epoch(self, epoch, local, work):
        for name in local.submodel.graph.learnt:
            work.model.weights[name].lerp_(local.weights[name], 0.5)
        return local


class SpoilsInReport(Method):
    def report(self, net, batches, work):
        work.model.weights["fc.bias"].zero_()
        return Report()


class LosesWhatItDoes(Method):
    def after_epoch(self, epoch, local, work):
        local.weights["fc.bias"].mul_(0.5)
        return local


class ForgetsLoss(Method):
    def loss(self, net, batch, work):
        super().loss(net, batch, work)


class ForgetsModel(Method):
    def after_epoch(self, epoch, local, work):
        pass


class ReturnsWeights(Method):
    def after_epoch(self, epoch, local, work):
        return local.weights


class ForgetsReport(Method):
    def report(self, net, batches, work):
        pass


class RemembersNumbers(Method):
    def report(self, net, batches, work):
        return Report(memory={"steps": 3})  # type: ignore[dict-item]


MISTAKES: dict[type[Method], str] = {
    SpoilsShared: "SpoilsShared.loss changes work.shared in place",
    SpoilsWeights: "SpoilsWeights.after_epoch changes work.model.weights in place",
    SpoilsInReport: "SpoilsInReport.report changes work.model.weights in place",
    LosesWhatItDoes: "LosesWhatItDoes.after_epoch changes local.weights in place",
    ForgetsLoss: "ForgetsLoss.loss must return a tensor of one number, not None: is a return",
    ForgetsModel: "ForgetsModel.after_epoch must return a LocalModel, not None: is a return",
    ReturnsWeights: "ReturnsWeights.after_epoch must return a LocalModel, not a dict",
    ForgetsReport: "ForgetsReport.report must return a Report, not None: is a return missing?",
    RemembersNumbers: 'RemembersNumbers.report must return a tensor in memory["steps"], not a int',
}


def first_round(method: Method, runner: Any = LoopRunner) -> RoundRecord:
    world = Simulator(
        method=method,
        net=tiny_net(),
        federation=federation((0.0, 0.0)),
        train=TRAIN,
        rounds=2,
        runner=runner,
    )
    return world.round(world.start())


@pytest.mark.parametrize("runner", [LoopRunner, partial(CpuRunner, workers=1)])
@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_a_hook_is_the_reason_why_clients_are_left_out(kind, runner):
    for out in (left_out := first_round(kind(), runner).left_out):
        assert out.reason.startswith(MISTAKES[kind])
    assert len(left_out) == 2


class ChangesItsCopy(Method):
    def after_epoch(self, epoch, local, work):
        local.weights["fc.bias"].mul_(0.5)
        return LocalModel(local.weights, local.submodel)


class MakesNew(Method):
    def after_epoch(self, epoch, local, work):
        return LocalModel(
            local.weights | {"fc.bias": local.weights["fc.bias"] * 0.5}, local.submodel
        )


def test_a_copy_may_be_changed_and_returned_in_a_new_model():
    ours, theirs = first_round(ChangesItsCopy()), first_round(MakesNew())
    assert not ours.left_out
    found, expected = (each.snapshot.server.weights for each in (ours, theirs))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
