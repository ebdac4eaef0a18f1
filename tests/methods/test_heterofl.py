import pytest
import torch
from tests.methods.rig import assigned, round_of, server_of

from dapperfl.methods.heterofl import HeteroFL

HETEROFL = HeteroFL(multiple=1)


def test_batch_norm_is_static_unless_it_is_asked_to_be_averaged():
    assert HeteroFL().measures(100)
    assert not HeteroFL(bn_statistics="average").measures(1)


def test_every_device_holds_the_first_channels_and_weaker_ones_hold_a_part_of_them():
    server = server_of(HETEROFL, (0.0, 0.3, 0.6, 0.8))
    held = [assigned(HETEROFL, server, device).model.submodel.to_lists() for device in range(4)]
    for group, full in held[0].items():
        sizes = [len(lists[group]) for lists in held]
        assert sizes == sorted(sizes, reverse=True)
        assert all(lists[group] == full[: len(lists[group])] for lists in held)
    assert len(held[3]["conv1"]) < len(held[0]["conv1"])


def test_each_entry_is_the_weighted_mean_over_its_holders():
    server = server_of(HETEROFL, (0.0, 0.6))
    small = assigned(HETEROFL, server, 1).model.submodel
    after = round_of(HETEROFL, server, [lambda t: t + 1, lambda t: t + 5], samples=(10, 30))
    ones = {name: torch.ones_like(t) for name, t in server.weights.items()}
    for name in server.model.submodel.graph.parameters:
        # both hold it: (10·1 + 30·5) / 40 = 4; only the strong one does: 1, not 10·1 / 40
        gain = torch.where(small.mask(ones)[name] > 0, 4.0, 1.0)
        moved = after.weights[name] - server.weights[name]
        assert torch.allclose(moved, gain, atol=1e-5), name


def test_entries_that_nobody_holds_keep_their_value():
    server = server_of(HETEROFL, (0.6,))
    small = assigned(HETEROFL, server, 0).model.submodel
    after = round_of(HETEROFL, server, [lambda t: t + 1])
    ones = {name: torch.ones_like(t) for name, t in server.weights.items()}
    for name, tensor in server.weights.items():
        outside = small.mask(ones)[name] == 0
        assert torch.equal(after.weights[name][outside], tensor[outside]), name


@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_a_device_takes_home_what_it_trains(rho):
    server = server_of(HETEROFL, (0.0, 0.4))
    device = 0 if rho == 0 else 1
    trained = assigned(HETEROFL, server, device).model.submodel
    assert HETEROFL.compact(server, rho).to_lists() == trained.to_lists()


def test_where_nobody_holds_the_whole_net_that_of_the_strongest_is_measured_and_handed_out():
    server = server_of(HETEROFL, (0.6, 0.3))
    strongest = HETEROFL.take_home(server, 0.3)
    assert strongest.submodel.kept
    for model in (HETEROFL.deliver(server), HETEROFL.measured_in(server, server.fleet[0])):
        assert model.submodel.to_lists() == strongest.submodel.to_lists()
    whole = server_of(HETEROFL, (0.6, 0.0))
    assert HETEROFL.deliver(whole) is HETEROFL.measured_in(whole, whole.fleet[0]) is whole.model
