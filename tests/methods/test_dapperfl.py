from dataclasses import fields

import pytest
import torch
from tests.methods.rig import assigned, server_of
from tests.tiny import tiny_graph, tiny_net
from torch import nn
from torch.nn.functional import cross_entropy

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.core.fusion import fuse
from dapperfl.core.losses import feature_norm
from dapperfl.core.messages import ClientCost, ClientUpdate, Device, LocalModel, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import Dice
from dapperfl.core.scores import l1_scores
from dapperfl.core.state import snapshot
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.nets.resnet import resnet10

NET = tiny_net()
GRAPH = tiny_graph(NET)
DEVICE = Device(0, "light", 0.5, 8)


def work(round_num: int = 1, rho: float = 0.5) -> Work:
    device = Device(0, "light", rho, 8)
    return Work(round_num, device, LocalModel(snapshot(NET), GRAPH.full()), 5)


def tuned() -> LocalModel:
    return LocalModel(tiny_net(7).state_dict(), GRAPH.full())


def test_presets_are_what_the_documents_say():
    paper, release, default = (DapperFL.from_preset(p) for p in ("paper", "release", "default"))
    assert paper == DapperFL(
        alpha_0=0.9, alpha_min=0.1, epsilon=0.2, gamma=0.01, dar_power=2, dar_reduce="sum",
        recovery="paper", scope="all", bn_statistics="average", dense="full", restyle=0.0,
        restyle_rounds=0, weight_power=1.0, averaging=0.0, recalibrate_rounds=0,
    )  # fmt: skip
    assert (release.dense, release.restyle, release.weight_power) == ("full", 0, 1)
    assert (release.alpha_0, release.alpha_min, release.dar_power) == (0, 0, 1)
    assert (release.dar_reduce, release.recovery, release.bn_statistics) == (
        "sum",
        "zero",
        "average",
    )
    assert (default.scope, default.recovery, default.bn_statistics) == (
        "auto",
        "gated",
        "average",
    )
    assert (default.dense, default.restyle, default.weight_power) == ("never", 0.5, 0.5)
    assert (release.averaging, default.averaging) == (0, 0.1)
    assert (release.restyle_rounds, default.restyle_rounds) == (0, 20)
    assert (release.recalibrate_rounds, default.recalibrate_rounds) == (0, 10)
    assert (default.dar_power, default.dar_reduce, default.gamma) == (2, "mean", 0.01)
    assert (default.alpha_0, default.alpha_min, default.epsilon) == (0.9, 0.1, 0.2)


def test_the_objective_is_equation_5():
    net = Net(tiny_net().eval(), "fc")
    batch = Batch(torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1]))
    z, logits = net.split(batch.x)
    loss = DapperFL(gamma=0.3, dar_power=2, dar_reduce="sum").loss(net, batch, work())
    expected = cross_entropy(logits, batch.y) + 0.3 * feature_norm(z)
    assert torch.allclose(loss, expected)


def test_a_zero_gamma_skips_the_term():
    class Headless(Net):
        def split(self, x):
            raise AssertionError("z is not wanted")

    batch = Batch(torch.randn(2, 3, 6, 6), torch.tensor([0, 1]))
    assert DapperFL(gamma=0.0).loss(Headless(NET, "fc"), batch, work()).isfinite()


@pytest.mark.parametrize("scope", ["inner", "all"])
def test_after_the_first_epoch_the_model_is_fused_and_cut(scope):
    method = DapperFL(scope=scope, multiple=1, dense="full")
    local = tuned()
    after = method.after_epoch(1, local, work(round_num=2, rho=0.4))
    fused = fuse(work().model.weights, local.weights, 0.9 * 0.8)
    kept = l1_scores(GRAPH, fused).top(0.4, scope=scope, multiple=1)
    assert after.submodel.to_lists() == kept.to_lists()
    assert cost(after.submodel).parameters <= 0.6 * cost(GRAPH.full()).parameters
    for name, tensor in kept.slice(fused).items():
        assert torch.equal(after.weights[name], tensor)


def test_weights_that_layers_share_are_fused_under_all_their_names():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    net[1].weight = net[0].weight
    graph = ChannelGraph.trace(net, torch.zeros(1, 4))
    sent = LocalModel({name: t.detach() * 0 for name, t in net.state_dict().items()}, graph.full())
    local = LocalModel(snapshot(net), graph.full())
    device = Device(0, "strong", 0.0, 8)
    after = DapperFL(alpha_0=0.5).after_epoch(1, local, Work(1, device, sent, 5))
    for name, tensor in local.weights.items():
        assert torch.equal(after.weights[name], tensor * 0.5), name


def test_later_epochs_change_nothing():
    assert [DapperFL().acts_after(epoch) for epoch in (1, 2, 3)] == [True, False, False]


def test_who_got_its_part_from_the_server_fuses_with_that_part():
    method = DapperFL(dense="never", scope="all", multiple=1)
    server = server_of(method)
    assignment = assigned(method, server, device=2)
    submodel = assignment.model.submodel
    assert submodel.kept
    given = Work(*(getattr(assignment, each.name) for each in fields(assignment)))
    local = LocalModel(submodel.slice(tiny_net(7).state_dict()), submodel)
    after = method.after_epoch(1, local, given)
    assert after.submodel is submodel
    expected = fuse(assignment.model.weights, local.weights, 0.9)
    assert all(torch.equal(after.weights[name], tensor) for name, tensor in expected.items())
    assert [method.acts_after(epoch) for epoch in (1, 2)] == [True, False]
    assert not DapperFL(dense="never", alpha_0=0.0, alpha_min=0.0).acts_after(1)


def test_fusion_happens_in_the_very_first_round():
    after = DapperFL().after_epoch(1, tuned(), work(round_num=1, rho=0.0))
    expected = 0.9 * NET.fc.weight.detach() + (1 - 0.9) * tuned().weights["fc.weight"]
    assert torch.equal(after.weights["fc.weight"], expected)


def test_the_update_recovers_what_was_cut():
    method = DapperFL(recovery="paper", scope="all", multiple=1)
    server = method.init(work().model, [DEVICE])
    submodel = method.compact(server, 0.5)
    small = {
        n: t + 1 if t.is_floating_point() else t for n, t in submodel.slice(server.weights).items()
    }
    update = ClientUpdate(DEVICE, LocalModel(small, submodel), 8, ClientCost())
    after = method.update(server, iter([update]))
    assert after.round_num == 1
    expected = submodel.scatter(small, server.weights)
    for name, tensor in after.weights.items():
        assert torch.allclose(tensor.double(), expected[name].double()), name


def test_who_never_holds_the_whole_net_gets_its_part_from_the_server():
    method = DapperFL(dense="never", multiple=1)
    server = method.init(work().model, [DEVICE])
    assignment = method.assign(server, DEVICE, 5, Dice(0, 1, 0))
    assert assignment is not None
    expected = l1_scores(GRAPH, server.weights).top(0.5, scope="inner", multiple=1)
    assert assignment.model.submodel.to_lists() == expected.to_lists()
    assert cost(assignment.model.submodel).parameters <= 0.5 * cost(GRAPH.full()).parameters


@pytest.mark.parametrize(("width", "cut"), [(16, False), (64, True)])
def test_residual_streams_are_cut_by_default_where_they_are_wide(width, cut):
    net = resnet10(10, width=width)
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 16, 16))
    kept = DapperFL().prune(LocalModel(snapshot(net), graph.full()), 0.5)
    streams = [group for group in graph.groups if group.stream]
    assert [group in kept.kept and len(kept.kept[group]) < group.size for group in streams] == (
        [cut] * len(streams)
    )


@pytest.mark.parametrize(("dense", "whole"), [("full", True), ("never", False)])
def test_who_never_holds_the_whole_net_measures_its_part(dense, whole):
    method = DapperFL(dense=dense, bn_statistics="recalibrate")
    server = method.init(work().model, [DEVICE])
    seen = method.measured_in(server, DEVICE).submodel
    wanted = server.model.submodel if whole else method.compact(server, DEVICE.rho)
    assert seen.to_lists() == wanted.to_lists()
    assert bool(seen.kept) is not whole


@pytest.mark.parametrize("dense", ["full", "batches"])
def test_others_get_the_whole_net_and_may_measure_it(dense):
    method = DapperFL(dense=dense, bn_statistics="recalibrate")
    server = method.init(work().model, [DEVICE])
    assignment = method.assign(server, DEVICE, 5, Dice(0, 1, 0))
    assert assignment is not None
    assert assignment.model is server.model
    assert method.measures(100)
    assert [method.acts_after(epoch) for epoch in (1, 2, 3)] == [True, False, False]
    early = [method.batches_before_acting(epoch) for epoch in (1, 2)]
    assert early == [2 if dense == "batches" else None, None]
