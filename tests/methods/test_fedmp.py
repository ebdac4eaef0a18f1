import pytest
import torch
from tests.core.made import Made
from tests.methods.rig import assigned, fleet_of, reply, round_of, server_of
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import LocalModel
from dapperfl.core.state import snapshot
from dapperfl.core.submodel import Submodel
from dapperfl.methods.fedmp import FedMP

FEDMP = FedMP(multiple=1)


def test_masked_and_residual_give_the_global_model_exactly():
    server = server_of(FEDMP)
    submodel = assigned(FEDMP, server, 2).model.submodel
    masked = submodel.mask(server.weights)
    for name, tensor in server.weights.items():
        residual = tensor - masked[name]
        assert torch.equal(masked[name] + residual, tensor)
        if tensor.is_floating_point() and name in submodel.graph.parameters:
            assert not bool((residual * masked[name]).any())  # an entry is in one or the other


def test_a_neuron_is_scored_by_its_row_and_comes_back_between_the_kept_ones():
    # x = (1, -4, 2, .5), two kept: mask (0, 1, 1, 0), residual (1, 0, 0, .5);
    # the trained pair (-3, 5) is recovered to (1, -3, 5, .5).
    net = Made(
        lambda self, x: self.second(self.first(x)),
        first=nn.Linear(1, 4, bias=False),
        second=nn.Linear(4, 2, bias=False),
    )
    net.get_parameter("first.weight").data = torch.tensor([[1.0], [-4.0], [2.0], [0.5]])
    graph = ChannelGraph.trace(net, torch.zeros(1, 1))
    server = FEDMP.init(LocalModel(snapshot(net), graph.full()), fleet_of([0.5]))
    assignment = assigned(FEDMP, server, 0)
    assert assignment.model.submodel.to_lists() == {"first": [1, 2]}
    trained = {**assignment.model.weights, "first.weight": torch.tensor([[-3.0], [5.0]])}
    update = reply(assignment, lambda t: t)
    update = type(update)(
        update.device, LocalModel(trained, update.model.submodel), 10, update.cost
    )
    after = FEDMP.update(server, iter([update]))
    assert after.weights["first.weight"].flatten().tolist() == [1, -3, 5, 0.5]


def test_an_untrained_submodel_returns_the_global_model():
    server = server_of(FEDMP, (0.2, 0.4, 0.6))
    after = round_of(FEDMP, server, [lambda t: t] * 3)
    for name, tensor in server.weights.items():
        assert torch.equal(after.weights[name], tensor), name


def test_removed_coordinates_come_from_the_global_model():
    server = server_of(FEDMP, (0.6,))
    submodel: Submodel = assigned(FEDMP, server, 0).model.submodel
    after = round_of(FEDMP, server, [lambda t: t + 1])
    kept = submodel.mask({name: torch.ones_like(t) for name, t in server.weights.items()})
    for name, tensor in server.weights.items():
        if tensor.is_floating_point():  # batch-norm statistics as well
            expected = torch.where(kept[name] > 0, tensor + 1, tensor)
            assert torch.equal(after.weights[name], expected), name


def test_equal_ratios_get_equal_masks_and_larger_ones_smaller_nets():
    server = server_of(FEDMP, (0.4, 0.4, 0.6))
    first, second, third = (assigned(FEDMP, server, device).model for device in range(3))
    assert first.submodel.to_lists() == second.submodel.to_lists()
    assert third.weights["conv1.weight"].numel() < first.weights["conv1.weight"].numel()


def test_the_average_of_recovered_models_is_weighted_by_samples():
    server = server_of(FEDMP, (0.0, 0.6))
    kept = assigned(FEDMP, server, 1).model.submodel
    ones = {name: torch.ones_like(t) for name, t in server.weights.items()}
    after = round_of(FEDMP, server, [lambda t: t + 1, lambda t: t + 2], samples=(10, 30))
    for name in server.model.submodel.graph.parameters:
        # where both train: (10·1 + 30·2) / 40 = 1.75; where only the first does: 10·1 / 40 = .25
        gain = torch.where(kept.mask(ones)[name] > 0, 1.75, 0.25)
        moved = after.weights[name] - server.weights[name]
        assert torch.allclose(moved, gain, atol=1e-6), name


@pytest.mark.parametrize("channel", [0, 3])
def test_a_channel_with_no_weight_left_is_the_first_to_go(channel):
    server = server_of(FEDMP, (0.2,))
    server.weights["conv1.weight"][channel] = 0
    assert channel not in assigned(FEDMP, server, 0).model.submodel.to_lists()["conv1"]
