"""FedAvg is what the base class does; see also the reductions in tests/contracts."""

import pytest
import torch
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.messages import ClientCost, ClientUpdate, Device, LocalModel
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
