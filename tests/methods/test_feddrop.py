import pytest
import torch
from tests.methods.rig import assigned, round_of, server_of

from dapperfl.core.cost import cost
from dapperfl.methods.feddrop import FedDrop

FEDDROP = FedDrop(multiple=1)


def test_the_default_ratio_is_the_weakest_devices_and_the_preset_is_the_releases():
    server = server_of(FEDDROP, (0.0, 0.4, 0.6))
    assert FedDrop().rho is None
    assert FEDDROP.ratio(server) == 0.6
    assert FedDrop.from_preset("release").ratio(server) == 0.6
    assert FedDrop(rho=0.3).ratio(server) == 0.3


def test_all_devices_of_a_round_get_the_same_submodel_and_the_next_round_another():
    server = server_of(FEDDROP)
    sent = [assigned(FEDDROP, server, device) for device in range(3)]
    sets = [assignment.model.submodel.to_lists() for assignment in sent]
    assert sets[0] == sets[1] == sets[2]
    assert [assignment.device.rho for assignment in sent] == [0.0, 0.4, 0.6]  # as it was
    later = server.advance(server.weights)
    assert assigned(FEDDROP, later, 0).model.submodel.to_lists() != sets[0]
    assert assigned(FEDDROP, server, 0, seed=0).model.submodel.to_lists() == sets[0]
    assert assigned(FEDDROP, server, 0, seed=1).model.submodel.to_lists() != sets[0]


def test_coordinates_outside_the_sets_are_bit_identical_after_a_round():
    server = server_of(FEDDROP)
    kept = assigned(FEDDROP, server, 0).model.submodel
    inside = kept.mask({name: torch.ones_like(t) for name, t in server.weights.items()})
    after = round_of(FEDDROP, server, [lambda t: t + 1, lambda t: t + 2, lambda t: t + 3])
    for name, tensor in server.weights.items():
        outside = inside[name] == 0
        assert torch.equal(after.weights[name][outside], tensor[outside]), name
        if tensor.is_floating_point():
            # inside: (10·1 + 20·2 + 30·3) / 60 = 140 / 60, FedAvg on the block
            moved = (after.weights[name] - tensor)[~outside]
            assert torch.allclose(moved, torch.full_like(moved, 140 / 60), atol=1e-5), name
    assert bool((inside["conv1.weight"] == 0).any())


def test_over_the_rounds_every_entry_is_trained_as_often_as_the_shares_say():
    method = FedDrop(multiple=1, rho=0.6)
    server, rounds = server_of(method), 400
    counts = {name: torch.zeros_like(t) for name, t in server.weights.items()}
    ones = {name: torch.ones_like(t) for name, t in server.weights.items()}
    for _ in range(rounds):
        submodel = assigned(method, server, 0).model.submodel
        for name, inside in submodel.mask(ones).items():
            counts[name] += inside
        server = server.advance(server.weights)
    inner, stream = (len(submodel.to_lists()[g]) for g in ("conv1", "stem"))
    for name, share in [
        ("bn1.weight", inner / 16),
        ("bn2.weight", stream / 8),
        ("conv1.weight", inner / 16 * stream / 8),  # both ends must be in: about k²
        ("fc.bias", 1.0),  # logits are never dropped
    ]:
        seen = counts[name] / rounds
        spread = (share * (1 - share) / rounds) ** 0.5
        assert (seen - share).abs().max().item() <= 5 * spread, name
        assert seen.mean().item() == pytest.approx(share, abs=0.02), name


def test_the_submodel_fits_the_ratio_for_all():
    server = server_of(FEDDROP, (0.0, 0.2, 0.6))
    full = cost(server.model.submodel).parameters
    for device in range(3):
        assert cost(assigned(FEDDROP, server, device).model.submodel).parameters <= 0.4 * full
    assert cost(FEDDROP.compact(server, 0.0)).parameters <= 0.4 * full
