"""At its neutral point a method must be FedAvg, bit for bit."""

import pytest
import torch
from tests.tiny import tiny_federation, tiny_net

from dapperfl.core.state import State
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.runtime.training import TrainSettings
from dapperfl.sim.simulator import Simulator


def weights_after(method: Method, rhos: tuple[float, ...] = (0.0, 0.0), rounds: int = 3) -> State:
    simulator = Simulator(
        method=method,
        net=tiny_net(),
        federation=tiny_federation(rhos),
        train=TrainSettings(epochs=2, batch_size=4, lr=0.05),
        rounds=rounds,
    )
    *_, last = simulator.rounds()
    return last.snapshot.server.weights


@pytest.mark.parametrize("statistics", ["average", "recalibrate"])
@pytest.mark.parametrize("recovery", ["paper", "gated", "zero"])
def test_dapperfl_without_fusion_penalty_and_pruning_is_fedavg(statistics, recovery):
    neutral = DapperFL(alpha_0=0, alpha_min=0, gamma=0, recovery=recovery, bn_statistics=statistics)
    ours, theirs = weights_after(neutral), weights_after(FedAvg())
    for name, _ in tiny_net().named_parameters():
        assert torch.equal(ours[name], theirs[name]), name
    same = torch.equal(ours["bn1.running_mean"], theirs["bn1.running_mean"])
    assert same == (statistics == "average")


def test_fedavg_ignores_levels():
    ours, theirs = weights_after(FedAvg(), (0.0, 0.8)), weights_after(FedAvg(), (0.0, 0.0))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
