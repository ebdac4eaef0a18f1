import pytest
import torch
from tests.methods.rig import assigned, fleet_of, server_of, work_for
from tests.tiny import tiny_graph, tiny_net
from torch import nn
from torch.nn.functional import cross_entropy

from dapperfl.core.messages import LocalModel, Work
from dapperfl.core.net import Batch, Net
from dapperfl.methods.fedprox import FedProx

BATCH = Batch(torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1]))


def test_the_defaults_are_the_papers_and_the_preset_is_the_familys_effective_value():
    assert (FedProx().mu, FedProx().epochs) == (0.1, "level")
    assert FedProx.from_preset("family").mu == pytest.approx(0.1 * 0.01)


def test_the_penalty_and_its_gradient_by_hand():
    # w = 3, W = 1, mu = .1: .1 / 2 · (3 - 1)² = .2, and its gradient .1 · (3 - 1) = .2
    net = nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(3.0)
    start = {"weight": torch.tensor([[1.0]])}
    work = Work(1, fleet_of([0.0])[0], LocalModel(start, tiny_graph().full()), 5)
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))  # one class: no loss
    penalty = FedProx(mu=0.1).loss(Net(net, None), batch, work)
    penalty.backward()
    assert penalty.item() == pytest.approx(0.2)
    assert net.weight.grad is not None
    assert net.weight.grad.item() == pytest.approx(0.2)


def test_the_penalty_counts_all_parameters_and_no_buffer():
    server = server_of(FedProx())
    net = tiny_net(7)
    drift = sum(
        (p - server.weights[name]).square().sum().item() for name, p in net.named_parameters()
    )
    with torch.no_grad():
        total = FedProx(mu=0.4).loss(Net(net.eval(), "fc"), BATCH, work_for(server)).item()
        plain = cross_entropy(net(BATCH.x), BATCH.y).item()
    assert total - plain == pytest.approx(0.4 / 2 * drift, rel=1e-5)


def test_the_first_step_of_a_round_feels_no_pull():
    server = server_of(FedProx())
    gradients = []
    for mu in (0.0, 0.7):
        net = tiny_net()  # the very weights of the server
        FedProx(mu=mu).loss(Net(net.eval(), "fc"), BATCH, work_for(server)).backward()
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(list(tiny_net().parameters()))
    assert all(torch.equal(plain, pulled) for plain, pulled in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("epochs", "expected"), [("level", [5, 4, 4, 3, 2, 1, 1]), ("all", [5] * 7)]
)
def test_a_level_runs_its_share_of_the_epochs_and_at_least_one(epochs, expected):
    method = FedProx(epochs=epochs)
    server = server_of(method, (0.0, 0.2, 0.25, 0.4, 0.6, 0.8, 0.95))
    assignments = [assigned(method, server, device) for device in range(7)]
    assert [assignment.epochs for assignment in assignments] == expected
    assert not any(assignment.model.submodel.kept for assignment in assignments)  # the full net
