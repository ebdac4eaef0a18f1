"""Nets that ask how their tensors lie are left as they are, in every precision."""

import logging
from functools import partial
from typing import ClassVar

import pytest
import torch
from tests.contracts.worlds import federation
from tests.tiny import tiny_net
from torch import nn

from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.turning import can_turn, turn
from dapperfl.sim.cpu import CpuRunner
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import Simulator


class Views(nn.Module):
    """Flattens its features as most tutorials do."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 3)

    def forward(self, x):
        x = self.conv(x).relu()
        return self.fc(x.view(x.size(0), -1))


class Volumes(nn.Module):
    """Reads a picture's colours as the frames of a film."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv3d(1, 8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.conv(x.unsqueeze(1)).relu().mean((2, 3, 4)))


class ViewsWeights(nn.Module):
    """Standardises its filters, in training only."""

    def __init__(self):
        super().__init__()
        self.conv, self.more, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 3)

    def forward(self, x):
        weight = self.more.weight
        if self.training:
            weight = weight - weight.view(len(weight), -1).mean(1).view(-1, 1, 1, 1)
        x = nn.functional.conv2d(self.conv(x).relu(), weight)
        return self.fc(x.mean((2, 3)))


class Strides(nn.Module):
    """Counts on where the numbers of its features lie; turned, it would read others."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x):
        x = self.conv(x).relu()
        return self.fc(x.as_strided((len(x), 8, 36), (288, 36, 1)).mean(2))


class Rounds(nn.Module):
    """Answers a hundredth otherwise when turned, as kernels in ten bits may."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x):
        x = self.conv(x)
        return self.fc(x.relu().mean((2, 3))) * (1 if x.is_contiguous() else 1.01)


@pytest.mark.parametrize(
    ("kind", "fp32", "bf16"),
    [
        (tiny_net, True, True),
        (Volumes, True, True),
        (Views, False, False),
        (ViewsWeights, True, False),  # in fp32 filters stay as they are
        (Strides, False, False),
        (Rounds, False, True),
    ],
)
def test_a_net_is_tried_before_it_is_turned(kind, fp32, bf16):
    net = kind()
    can = [can_turn(net, torch.zeros(1, 3, 8, 8), each) for each in ("fp32", "bf16")]
    assert can == [fp32, bf16]
    assert all(parameter.is_contiguous() for parameter in net.parameters())
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_a_note_says_why(precision, caplog):
    caplog.set_level(logging.INFO)
    assert not can_turn(Views(), torch.zeros(1, 3, 8, 8), precision)
    assert len([each for each in caplog.messages if "cannot hold channels last" in each]) == 1


def test_filters_of_pictures_are_turned_and_others_stay():
    flat, deep = nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)
    turn(nn.Sequential(flat, deep, nn.Linear(3, 4)))
    assert flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert deep.weight.is_contiguous()


class Lies(FedAvg):
    """Notes how pictures, filters and features lie while a client trains, on the class."""

    seen: ClassVar[list[bool]] = []

    def loss(self, net, batch, work):
        net.module.conv.register_forward_hook(
            lambda *call: self.seen.append(call[2].is_contiguous())
        )
        plain = [batch.x, *dict(net.named_parameters()).values()]
        self.seen.append(all(each.is_contiguous() for each in plain))
        return super().loss(net, batch, work)


class Flattens(Views):
    def forward(self, x):
        return self.fc(self.conv(x).relu().flatten(1))


@pytest.mark.parametrize("runner", [LoopRunner, GraphRunner])
@pytest.mark.parametrize(("kind", "turned"), [(Flattens, True), (Views, False)])
def test_on_a_cpu_only_what_a_net_makes_of_pictures_is_turned(kind, turned, runner):
    Lies.seen.clear()
    assert_all_train(kind(), runner, "fp32", Lies())
    methods_see, features = Lies.seen[:2]
    assert methods_see
    assert features is not turned


@pytest.mark.parametrize("kind", [Views, Volumes, ViewsWeights])
@pytest.mark.parametrize("runner", [LoopRunner, GraphRunner])
def test_nets_that_cannot_be_turned_train_in_bf16(kind, runner):
    assert_all_train(kind(), runner, "bf16")


def test_cores_are_not_planned_with_what_a_net_cannot_do():
    assert_all_train(Views(), partial(CpuRunner, exact=False, workers=1), "fp32")


def assert_all_train(net, runner, precision, method=None):
    world = Simulator(
        method=method or DapperFL(),
        net=net,
        federation=federation((0.0, 0.2)),
        train=TrainSettings(epochs=2, batch_size=4),
        rounds=1,
        runner=runner,
        precision=precision,
    )
    (record,) = world.rounds()
    assert not record.left_out
