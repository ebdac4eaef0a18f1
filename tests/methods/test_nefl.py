"""NeFL: what is shared between levels, what is not, and the ladder they stand on."""

import logging
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest
import torch
from tests.core.made import Made
from tests.methods.rig import assigned, fleet_of, reply, round_of, server_of
from tests.tiny import tiny_net
from torch import nn

from dapperfl import nets
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import Device, LocalModel
from dapperfl.core.state import snapshot
from dapperfl.methods.nefl import NeFL

NEFL = NeFL(multiple=1)
LADDER = (0.0, 0.2, 0.4, 0.6, 0.8)


def test_the_defaults_are_those_decided_and_the_preset_is_the_official_choice():
    assert (NeFL().learnable_steps, NeFL().rungs) == (True, "fixed")
    official = NeFL.from_preset("official")
    assert (official.learnable_steps, official.rungs) == (True, "dynamic")


def test_each_entry_is_the_mean_over_those_who_hold_it():
    # rung A holds w1 = 2, rung B holds (4, 6): new (3, 6)
    net = Made(
        lambda self, x: self.second(self.first(x)),
        first=nn.Linear(1, 2, bias=False),
        second=nn.Linear(2, 2, bias=False),
    )
    method = NeFL(multiple=1, learnable_steps=False)
    graph = ChannelGraph.trace(net, torch.zeros(1, 1))
    server = method.init(LocalModel(snapshot(net), graph.full()), fleet_of([0.5, 0.0]))
    values = [torch.tensor([[2.0]]), torch.tensor([[4.0], [6.0]])]
    updates = []
    for device, value in enumerate(values):
        assignment = assigned(method, server, device)
        assert assignment.model.weights["first.weight"].shape == value.shape
        answer = reply(assignment, lambda t: t, shared=assignment.shared)
        answer.model.weights["first.weight"] = value
        updates.append(answer)
    after = method.update(server, iter(updates))
    assert after.weights["first.weight"].flatten().tolist() == [3, 6]


def test_entries_that_nobody_holds_stay_bit_identical():
    server = server_of(NEFL, (0.0, 0.6))
    assignment = assigned(NEFL, server, 1)
    answer = reply(assignment, lambda t: t + 1, shared=assignment.shared)
    after = NEFL.update(server, iter([answer]))
    kept = assignment.model.submodel
    ones = {name: torch.ones_like(t) for name, t in server.weights.items()}
    outside = kept.mask(ones)["conv1.weight"] == 0
    assert bool(outside.any())
    before = server.weights["conv1.weight"]
    assert torch.equal(after.weights["conv1.weight"][outside], before[outside])
    assert torch.equal(after.weights["conv1.weight"][~outside], before[~outside] + 1)


def test_norms_and_steps_of_a_level_depend_on_that_levels_clients_only():
    server = server_of(NEFL, (0.0, 0.4, 0.4))
    after = round_of(NEFL, server, [lambda t: t + 5, lambda t: t + 1, lambda t: t + 2])
    for name in ("bn1.weight", "bn2.bias", "bn1.running_mean", "step"):
        own = assigned(NEFL, server, 1).model.weights[name]
        # samples 20 and 30: (20·1 + 30·2) / 50 = 1.6
        moved = after.extra[f"0.4/{name}"] - own
        assert torch.allclose(moved, torch.full_like(moved, 1.6), atol=1e-5), name
        top = after.extra[f"0.0/{name}"] - server.weights[name]
        assert torch.allclose(top, torch.full_like(top, 5.0), atol=1e-5), name
        assert torch.equal(after.weights[name], after.extra[f"0.0/{name}"])  # it is evaluated
        sent = assigned(NEFL, after, 2).model.weights[name]
        assert torch.equal(sent, after.extra[f"0.4/{name}"])


def test_a_level_without_clients_keeps_its_norms():
    server = server_of(NEFL, (0.0, 0.4, 0.6))
    after = round_of(NEFL, server, [lambda t: t + 5])  # the first device alone
    for key, tensor in server.extra.items():
        trained = key.startswith("0.0/") and tensor.is_floating_point()
        assert torch.equal(after.extra[key], tensor) == (not trained), key


def test_batch_counters_do_not_double_with_every_round():
    server = server_of(NEFL, (0.4, 0.4))
    for _ in range(70):  # a sum over clients would be past 2⁶⁴
        updates = []
        for device in range(2):
            assignment = assigned(NEFL, server, device)
            answer = reply(assignment, lambda t: t, shared=assignment.shared)
            answer.model.weights["bn1.num_batches_tracked"] = (
                assignment.model.weights["bn1.num_batches_tracked"] + 3
            )
            updates.append(answer)
        server = NEFL.update(server, iter(updates))
    assert server.extra["0.4/bn1.num_batches_tracked"].item() == 70 * 3


def test_norms_keep_their_number_format():
    single = server_of(NEFL).model
    weights = {n: t.double() if t.is_floating_point() else t for n, t in single.weights.items()}
    server = NEFL.init(LocalModel(weights, single.submodel), fleet_of((0.0, 0.4)))
    after = round_of(NEFL, server, [lambda t: t + 1, lambda t: t + 1])
    assert after.extra["0.4/bn1.weight"].dtype == torch.float64


@cache
def traced(name: str, width: int) -> tuple[nn.Module, ChannelGraph]:
    net = nets.build(name, num_classes=10, width=width)
    return net, ChannelGraph.trace(net, torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize("scope", ["inner", "all"])
@pytest.mark.parametrize(
    ("name", "width"), [("resnet10", 16), ("resnet18", 8), ("convnet", 16), ("mobilenetv2", 16)]
)
def test_levels_are_nested(name, width, scope):
    net, graph = traced(name, width)
    for multiple in (1, 8):
        method = NeFL(scope=scope, multiple=multiple, learnable_steps=False)
        levels = LADDER if scope == "all" else LADDER[:3]
        server = method.init(LocalModel(snapshot(net), graph.full()), fleet_of(levels))
        kept = [method.compact(server, rho).to_lists() for rho in levels]
        for larger, smaller in pairwise(kept):
            for group, channels in smaller.items():
                assert channels == larger[group][: len(channels)] == list(range(len(channels)))
        assert kept[-1] != kept[0]


def test_a_level_cut_from_a_level_is_that_level():
    server = server_of(NEFL, (0.0, 0.4, 0.6))
    large, small = (NEFL.compact(server, rho) for rho in (0.4, 0.6))
    for name, tensor in large.slice(server.weights).items():
        direct = small.slice(server.weights)[name]
        block = tensor[tuple(slice(0, size) for size in direct.shape)]
        assert torch.equal(block, direct), name


def test_dynamic_rungs_are_within_two_of_the_own_and_all_of_them_come():
    method = NeFL(multiple=1, rungs="dynamic")
    server = server_of(method, LADDER)
    weakest_first = sorted(LADDER, reverse=True)
    for device, rho in enumerate(LADDER):
        here = weakest_first.index(rho)
        drawn = {
            int(assigned(method, server, device, seed=seed).shared["rung"]) for seed in range(60)
        }
        assert drawn == set(range(max(0, here - 2), min(5, here + 3)))
    again = [assigned(method, server, 2, seed=7).shared["rung"] for _ in range(2)]
    assert again[0] == again[1]


def test_a_fixed_rung_is_the_devices_own_level_even_if_it_is_written_as_an_integer():
    server = server_of(NEFL, (0, 0.4))
    assert int(assigned(NEFL, server, 0).shared["rung"]) == 1  # the weakest is 0
    assert not assigned(NEFL, server, 0).model.submodel.kept
    after = round_of(NEFL, server, [lambda t: t + 1, lambda t: t])
    sent = assigned(NEFL, after, 0).model.weights
    assert torch.allclose(sent["bn1.weight"], server.weights["bn1.weight"] + 1)


def test_a_step_of_one_changes_nothing_and_scales_the_branch():
    x = torch.randn(2, 3, 6, 6)
    net = NEFL.prepare(tiny_net(), "fc").eval()
    assert isinstance(net.step, nn.Parameter)
    assert torch.equal(net(x), tiny_net().eval()(x))
    net.step.data.fill_(0.0)
    plain = tiny_net().eval()
    expected = plain.fc(torch.relu(plain.stem(x)).mean((2, 3)))  # the branch is gone
    assert torch.allclose(net(x), expected, atol=1e-6)


def test_a_net_without_room_for_steps_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        NEFL.prepare(nets.build("convnet", num_classes=3, width=8), "head")
    assert 'has a parameter "step"' in caplog.text
    net = tiny_net()
    assert NeFL(learnable_steps=False).prepare(net, "fc") is net


@pytest.mark.parametrize(
    ("method", "rhos", "rho"),
    [
        (NEFL, (0.2, 0.6), 0.2),
        (NEFL, (0.0, 0.6), 0.0),
        (NeFL(multiple=1, rungs="dynamic"), (0.2, 0.6), 0.0),  # some draw the full net
    ],
)
def test_the_largest_net_that_is_trained_is_handed_out_with_its_norms(method, rhos, rho):
    server = server_of(method, rhos)
    after = replace(server, extra={name: t + 1 for name, t in server.extra.items()})
    home, handed = method.take_home(after, rho), method.deliver(after)
    assert handed.submodel.to_lists() == home.submodel.to_lists()
    if rho:
        assert torch.equal(handed.weights["bn1.weight"], home.weights["bn1.weight"])


def test_a_level_takes_its_own_norms_and_steps_home():
    server = server_of(NEFL, (0.0, 0.6))
    after = round_of(NEFL, server, [lambda t: t + 1, lambda t: t + 5], samples=(10, 20))
    weak, strong = NEFL.take_home(after, 0.6), NEFL.take_home(after, 0.0)
    before = NEFL.take_home(server, 0.6)
    assert torch.equal(weak.weights["bn1.weight"], before.weights["bn1.weight"] + 5)
    assert weak.weights["step"].item() == 6
    assert strong.weights["step"].item() == 2


def test_running_means_are_also_of_the_norms_that_each_level_has_for_itself():
    method = NeFL(multiple=1, averaging=1.0)
    server = server_of(method)
    for number in (1.0, 2.0, 6.0):
        after = round_of(method, server, [partial(torch.full_like, fill_value=number)] * 3)
        server = after.averaged(server.mean, method.averaging)
    for rho in (0.0, 0.4, 0.6):
        for name, tensor in method.take_home(server.smooth(), rho).weights.items():
            if tensor.is_floating_point():
                assert torch.allclose(tensor, torch.full_like(tensor, 3.0)), name


def test_a_step_of_the_nets_own_stays_as_it_is():
    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Parameter(torch.full((4, 1), 0.05))
            self.fc = nn.Linear(3, 4)

        def forward(self, x):
            return nn.functional.linear(x, self.fc.weight * self.step, self.fc.bias)

    net = Quantised()
    found = NeFL().prepare(net, None)
    assert torch.equal(found.get_parameter("step"), net.step)


def test_a_convolution_beside_its_norm_in_one_module_is_shared():
    class ConvNorm(nn.Module):
        mean: torch.Tensor
        spread: torch.Tensor

        def __init__(self, read, write):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(write, read, 3, 3))
            self.gamma = nn.Parameter(torch.ones(write))
            self.beta = nn.Parameter(torch.zeros(write))
            self.register_buffer("mean", torch.zeros(write))
            self.register_buffer("spread", torch.ones(write))

        def forward(self, x):
            out = nn.functional.conv2d(x, self.weight, padding=1)
            statistics = self.mean, self.spread
            return nn.functional.batch_norm(out, *statistics, self.gamma, self.beta, self.training)

    tail = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    net = nn.Sequential(ConvNorm(3, 8), *tail)
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    method = NeFL(learnable_steps=False, multiple=1)
    fleet = [Device(0, "a", 0.0, 1), Device(1, "a", 0.4, 1)]
    server = method.init(LocalModel(net.state_dict(), graph.full()), fleet)
    own = {name.partition("/")[2] for name in server.extra}
    assert own == {"0.gamma", "0.beta", "0.mean", "0.spread"}
