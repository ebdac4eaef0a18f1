"""What is seen of a net while it runs: names of calls, where they are, and how much they work."""

import operator

import pytest
import torch
from tests.core import zoo, zoo_odd
from tests.core.counting import work_of
from tests.core.made import Made, conv
from tests.core.zoo_cuts import graph_of
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dapperfl import nets
from dapperfl.core.calls import Call, canonical_name
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.core.scores import ordered_scores
from dapperfl.core.tracing import new_trace, watch
from dapperfl.nets.resnet import ResNet


class Names(TorchFunctionMode):
    """Keeps the names of all calls."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(canonical_name(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("add", [lambda x: x + 1, lambda x: 1 + x, lambda x: operator.iadd(x.clone(), 1),
                 lambda x: x.add(1), lambda x: x.clone().add_(1), lambda x: torch.add(x, 1)]),
        ("div", [lambda x: x / 2, lambda x: x.true_divide(2), lambda x: torch.divide(x, 2)]),
        ("sub", [lambda x: 1 - x, lambda x: x.subtract(1), lambda x: torch.rsub(x, 1)]),
        ("logical_and", [lambda x: (x > 0) & (x < 1), lambda x: torch.logical_and(x, x),
                         lambda x: operator.iand(x > 0, x < 1), lambda x: True & (x < 1)]),
        ("relu", [F.relu, lambda x: F.relu(x.clone(), inplace=True), nn.ReLU(), torch.Tensor.relu]),
        ("max_pool2d", [lambda x: F.max_pool2d(x, 2), nn.MaxPool2d(2)]),
        ("cat", [lambda x: torch.concat([x, x]), lambda x: torch.concatenate([x, x])]),
        ("T", [lambda x: x[0, 0].T]),
        ("getitem", [lambda x: x[:, 0]]),
        ("float", [lambda x: x.float()]),
        ("__float__", [lambda x: float(x.sum())]),
        ("__bool__", [lambda x: bool(x.sum() > 0)]),
        ("set data", [lambda x: setattr(x.clone(), "data", x)]),
    ],
)  # fmt: skip
def test_an_operation_has_one_name_however_it_is_written(name, calls):
    for call in calls:
        with Names() as names:
            call(torch.ones(1, 2, 4, 4))
        assert names.seen[-1] == name


def test_calls_are_handed_over_with_the_layer_they_came_from():
    net = zoo.ResNet().eval()
    seen: dict[str, list[Call]] = {}
    trace = new_trace(net, 2)
    watch(net, trace, net.example(), lambda _, call: seen.setdefault(call.where, []).append(call))
    assert [call.name for call in seen["layer2.0.downsample.0"]] == ["conv2d"]
    assert str(seen["layer1.0.bn1"][-1]) == '"batch_norm" in layer1.0.bn1 (BatchNorm2d)'
    assert str(seen[""][-1]) == '"flatten" in the top module (ResNet)'
    assert "add" in [call.name for call in seen["layer1.0"]]


def test_a_net_that_fails_leaves_no_hooks_behind():
    net = zoo.ResNet()
    with pytest.raises(RuntimeError):
        watch(net, new_trace(net, 2), torch.zeros(2, 4, 8, 8), lambda *_: None)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_layers_under_no_grad_cost_no_gradient():
    def forward(net, x):
        with torch.no_grad():
            z = net.b(net.a(x))
        return net.fc(z.mean((2, 3)))

    net = Made(forward, a=conv(3, 8), b=conv(8, 8), fc=nn.Linear(8, 5))
    found = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8)).arithmetic
    assert [(work.weight, work.first, work.learnt) for work in found] == [
        ("a.weight", True, False), ("b.weight", True, False), ("fc.weight", True, True)
    ]  # fmt: skip


def test_layers_that_do_not_train_cost_no_gradient_of_their_own():
    def forward(net, x):
        return net.fc(net.c(net.b(net.a(x))).mean((2, 3)))

    net = Made(forward, a=conv(3, 8), b=conv(8, 8), c=conv(8, 8), fc=nn.Linear(8, 5))
    net.a.requires_grad_(False)
    net.c.requires_grad_(False)
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert [(work.weight, work.first, work.learnt) for work in graph.arithmetic] == [
        ("a.weight", True, False), ("b.weight", True, True), ("c.weight", False, False),
        ("fc.weight", False, True),
    ]  # fmt: skip
    submodel = ordered_scores(graph).keep(dict.fromkeys(graph.groups, 4))
    macs, flops = work_of(submodel.shrink(net), torch.rand(2, 3, 8, 8))
    assert (cost(submodel).macs, cost(submodel).train_flops) == (macs, flops)


def test_work_that_no_loss_reaches_costs_no_gradient():
    def forward(net, x):
        x = net.a(x)
        net.seen = net.nowhere(x).mean(), x.flatten(2) @ x.flatten(2).mT  # nobody asks for them
        mask = (net.mask(x) > 0).to(x.dtype)  # no gradient passes a comparison
        gate = torch.sigmoid(net.gate(x)).detach()
        return net.fc((net.b(x) * mask * gate).mean((2, 3)))

    layers = {name: conv(8, 8) for name in ("b", "nowhere", "mask", "gate")}
    net = Made(forward, a=conv(3, 8), fc=nn.Linear(8, 5), **layers)
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    price = cost(graph.full())
    assert (price.macs, price.train_flops) == work_of(net, torch.rand(2, 3, 8, 8))


def test_nets_frozen_as_a_whole_and_normalised_inputs_do_not_change_the_count():
    net = zoo.ResNet()
    graph = ChannelGraph.trace(net, net.example())
    assert (
        ChannelGraph.trace(net.requires_grad_(False), net.example()).arithmetic == graph.arithmetic
    )
    assert [work.weight for work in graph.arithmetic if work.first] == ["conv1.weight"]
    first = [work.weight for work in graph_of(zoo_odd.Conv1dNet).arithmetic if work.first]
    assert first == ["body.0.weight"]


def test_deeper_nets_are_run_no_more_often_to_be_traced(monkeypatch):
    runs: list[str] = []
    plain = ResNet.forward

    def counted(net: ResNet, x: torch.Tensor) -> torch.Tensor:
        runs.append("once")
        return plain(net, x)

    monkeypatch.setattr(ResNet, "forward", counted)
    counts = []
    for name in ("resnet10", "resnet34"):
        runs.clear()
        ChannelGraph.trace(nets.build(name, num_classes=10, width=4), torch.zeros(1, 3, 32, 32))
        counts.append(len(runs))
    assert 0 < counts[0] == counts[1]
