"""At its neutral point a method must be FedAvg, bit for bit or, for means over holders, nearly."""

import pytest
import torch
from tests.tiny import tiny_federation, tiny_net

from dapperfl.core.state import State
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.methods.fedavg_capable import FedAvgCapable
from dapperfl.methods.fedavg_small import FedAvgSmall
from dapperfl.methods.feddrop import FedDrop
from dapperfl.methods.fedmp import FedMP
from dapperfl.methods.fedprox import FedProx
from dapperfl.methods.fedrolex import FedRolex
from dapperfl.methods.fpl import FPL
from dapperfl.methods.heterofl import HeteroFL
from dapperfl.methods.moon import Moon
from dapperfl.methods.nefl import NeFL
from dapperfl.methods.scaffold import Scaffold
from dapperfl.runtime.optimiser import TrainSettings
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
    neutral = DapperFL.from_preset(
        "paper", alpha_0=0, alpha_min=0, gamma=0, recovery=recovery, bn_statistics=statistics
    )
    ours, theirs = weights_after(neutral), weights_after(FedAvg())
    for name, _ in tiny_net().named_parameters():
        assert torch.equal(ours[name], theirs[name]), name
    same = torch.equal(ours["bn1.running_mean"], theirs["bn1.running_mean"])
    assert same == (statistics == "average")


def test_fedavg_ignores_levels():
    ours, theirs = weights_after(FedAvg(), (0.0, 0.8)), weights_after(FedAvg(), (0.0, 0.0))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("method", "rhos"),
    [
        (FedProx(mu=0.0), (0.0, 0.0)),
        (FedProx(mu=0.0, epochs="all"), (0.0, 0.6)),
        (Moon(mu=0.0), (0.0, 0.6)),
        (FPL(cluster_weight=0.0, unbiased_weight=0.0), (0.0, 0.6)),
        (FedMP(), (0.0, 0.0)),
        (FedDrop(), (0.0, 0.0)),
        (FedDrop(rho=0.0), (0.0, 0.6)),
        (FedAvgCapable(), (0.0, 0.0)),
        (FedAvgSmall(), (0.0, 0.0)),
    ],
    ids=str,
)
def test_a_neutral_method_is_fedavg_bit_for_bit(method, rhos):
    ours, theirs = weights_after(method, rhos), weights_after(FedAvg(), rhos)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_fpl_is_fedavg_in_its_first_round_and_not_after(preset):
    method = FPL.from_preset(preset)
    ours, theirs = weights_after(method, rounds=1), weights_after(FedAvg(), rounds=1)
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert not torch.equal(weights_after(method)["fc.weight"], weights_after(FedAvg())["fc.weight"])


@pytest.mark.parametrize("method", [Moon(), Scaffold()], ids=str)
def test_what_clients_remember_is_fedavg_in_its_first_round_and_not_after(method):
    ours, theirs = weights_after(method, rounds=1), weights_after(FedAvg(), rounds=1)
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    later, plain = (weights_after(each)["stem.weight"] for each in (method, FedAvg()))
    assert not torch.equal(later, plain)


@pytest.mark.parametrize(
    "method",
    [
        NeFL(learnable_steps=False),
        NeFL(learnable_steps=False, rungs="dynamic"),
        HeteroFL(bn_statistics="average"),
        FedRolex(bn_statistics="average"),
        HeteroFL(),
        FedRolex(step=3),
    ],
    ids=str,
)
def test_a_mean_over_holders_is_fedavg_where_all_hold_everything(method):
    """Unequal sample counts; measured statistics aside, which are not FedAvg's."""
    ours, theirs = weights_after(method), weights_after(FedAvg())
    measured = method.measures(1)
    for name, tensor in theirs.items():
        if not (measured and "running" in name) and tensor.is_floating_point():
            assert torch.allclose(ours[name], tensor, atol=1e-6, rtol=0), name
    assert torch.equal(ours["bn1.running_var"], theirs["bn1.running_var"]) != measured
