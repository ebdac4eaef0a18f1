"""FedAvg is what the base class does; see also the reductions in tests/contracts."""

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from tests.methods.rig import assigned, reply, server_of
from tests.tiny import tiny_graph, tiny_net
from torch import Tensor

from dapperfl.core.messages import ClientCost, ClientUpdate, Device, LocalModel
from dapperfl.core.rng import generator
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg


@pytest.mark.parametrize(("power", "weights"), [(1.0, (9, 1)), (0.5, (3, 1)), (0.0, (1, 1))])
def test_small_devices_may_weigh_more_than_their_samples(power, weights):
    graph = tiny_graph()
    states = [tiny_net(seed).state_dict() for seed in (1, 2)]
    method = FedAvg(weight_power=power)
    server = method.init(LocalModel(tiny_net().state_dict(), graph.full()), [])
    updates = [
        ClientUpdate(Device(i, "light", 0.0, n), LocalModel(state, graph.full()), n, ClientCost())
        for i, (state, n) in enumerate(zip(states, (9, 1), strict=True))
    ]
    found = method.update(server, updates).weights["fc.weight"]
    first, second = (state["fc.weight"].double() for state in states)
    expected = (weights[0] * first + weights[1] * second) / sum(weights)
    assert torch.allclose(found.double(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("rounds", "shares"), [(0, [0.5, 0.5, 0.5]), (1, [0, 0.5, 0.5]), (2, [0, 0.25, 0.5])]
)
def test_the_share_of_restyled_pictures_grows_over_the_first_rounds(rounds, shares):
    method = FedAvg(restyle=0.5, restyle_rounds=rounds)
    assert [method.restyled_share(number) for number in (1, 2, 3)] == shares
    assert method.restyled_share(99) == 0.5


def moved(seed: int) -> Callable[[Tensor], Tensor]:
    """Return a function that adds noise of its own to tensors."""
    rng = generator(seed)
    return lambda tensor: tensor + 0.01 * torch.randn(tensor.shape, generator=rng)


@pytest.mark.parametrize("power", [1.0, 0.5, 0.3, 0.0])
def test_whoever_answers_first_the_mean_is_the_same_to_the_last_bit(power):
    """The mean of devices that weigh alike is often halfway between two floats."""
    method = DapperFL(weight_power=power, multiple=1)
    server = server_of(method, (0.0, 0.0, 0.8), tiny_net(width=32))
    updates = [reply(assigned(method, server, n), moved(n), samples=35) for n in range(3)]
    first, *others = (method.update(server, list(order)) for order in permutations(updates))
    for other in others:
        for name, tensor in first.weights.items():
            assert torch.equal(tensor, other.weights[name]), name
