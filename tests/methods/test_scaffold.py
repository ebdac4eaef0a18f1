"""SCAFFOLD's control variates, by hand and in runs of a tiny world."""

import pytest
import torch
from tests.methods.rig import assigned, reply, server_of, work_for
from tests.tiny import tiny_federation, tiny_net
from torch.nn.functional import cross_entropy

from dapperfl.core.net import Batch, Net
from dapperfl.core.state import State
from dapperfl.methods.base import Method
from dapperfl.methods.fedavg import FedAvg
from dapperfl.methods.scaffold import PATH, Scaffold
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.simulator import RoundRecord, Simulator

BATCH = Batch(torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1]))


def records(method: Method, *, devices: int = 3, rounds: int = 3, **train: float):
    simulator = Simulator(
        method=method,
        net=tiny_net(),
        federation=tiny_federation((0.0,) * devices, samples=8),
        train=TrainSettings(epochs=2, batch_size=4, lr=0.05, **train),
        rounds=rounds,
    )
    return list(simulator.rounds())


def controls(record: RoundRecord) -> list[State]:
    memories = record.snapshot.memories
    return [{n: t for n, t in memories[i].items() if n != PATH} for i in sorted(memories)]


def assert_close(ours: State, theirs: State, atol: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=atol), name


def test_the_gradient_of_the_objective_is_corrected_and_its_value_is_not():
    method, server, net = Scaffold(), server_of(Scaffold()), tiny_net(7)
    names = [name for name, _ in net.named_parameters()]
    common = {name: torch.full_like(server.weights[name], 0.5) for name in names}
    own = {name: torch.full_like(server.weights[name], 0.2) for name in names}
    path = torch.zeros((), requires_grad=True)
    loss = method.loss(Net(net, "fc"), BATCH, work_for(server, {PATH: path, **own}, common))
    loss.backward()
    plain = tiny_net(7)
    expected = cross_entropy(plain(BATCH.x), BATCH.y)
    expected.backward()
    assert loss.item() == expected.item()
    assert path.grad is not None
    assert path.grad.item() == -1
    for name, parameter in plain.named_parameters():
        got = net.get_parameter(name).grad
        assert got is not None
        assert parameter.grad is not None
        assert torch.allclose(got, parameter.grad + 0.5 - 0.2, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_control_is_the_mean_gradient_whatever_the_optimiser_makes_of_it(momentum):
    """Without momentum this is c_i - c + (x - y) / (K lr), option II."""
    method, server, net = Scaffold(), server_of(Scaffold()), tiny_net()
    work = work_for(server)
    path = method.own(work)[PATH].requires_grad_()
    optimiser = torch.optim.SGD([*net.parameters(), path], lr=0.03, momentum=momentum)
    for _ in range(7):  # with a gradient of 2 everywhere
        optimiser.zero_grad()
        loss = 2 * sum(parameter.sum() for parameter in net.parameters()) - path
        loss.backward()
        optimiser.step()
    names = [name for name, _ in net.named_parameters()]
    common = {name: torch.full_like(server.weights[name], 0.5) for name in names}
    own = {name: torch.full_like(server.weights[name], 0.2) for name in names}
    seen = method.report(Net(net, "fc"), [], work_for(server, {PATH: path, **own}, common))
    for name in names:
        # What was walked is g - c_i + c; so c_i⁺ = 2 - .5 + .2, and it moved by 2 - .5.
        assert torch.allclose(seen.memory[name], torch.tensor(1.7), atol=1e-4)
        assert torch.allclose(seen.shared[name], torch.tensor(1.5), atol=1e-4)
    if not momentum:
        assert path.item() == pytest.approx(7 * 0.03)


def test_the_first_round_is_that_of_fedavg():
    ours, theirs = (records(m, rounds=1)[0].snapshot.server for m in (Scaffold(), FedAvg()))
    for name, tensor in ours.weights.items():
        assert torch.equal(tensor, theirs.weights[name])


@pytest.mark.parametrize(("power", "weights"), [(0.0, [1, 1, 1]), (1.0, [8, 9, 10])])
def test_with_everybody_there_c_is_the_mean_of_what_clients_have(power, weights):
    shares = torch.tensor(weights) / sum(weights)  # those of their weights in the model
    for record in records(Scaffold(weight_power=power)):
        own = controls(record)
        stacks = {name: torch.stack([each[name] for each in own]) for name in own[0]}
        mean = {name: torch.einsum("i,i...->...", shares, t) for name, t in stacks.items()}
        assert_close(record.snapshot.server.extra, mean)
    assert max(tensor.abs().max() for tensor in mean.values()) > 0.01


def test_a_single_client_has_nothing_to_correct():
    for ours, theirs in zip(
        records(Scaffold(), devices=1), records(FedAvg(), devices=1), strict=True
    ):
        assert_close(ours.snapshot.server.extra, controls(ours)[0])
        assert_close(ours.snapshot.server.weights, theirs.snapshot.server.weights)


def test_who_does_not_answer_holds_its_part_of_c():
    method = Scaffold()
    server = server_of(method)
    assignment = assigned(method, server, 0)
    names = [name for name, _ in tiny_net().named_parameters()]
    moved = {name: torch.ones_like(server.weights[name]) for name in names}
    after = method.update(server, iter([reply(assignment, lambda t: t, shared=moved)]))
    for tensor in after.extra.values():
        assert torch.allclose(tensor, torch.tensor(1 / 3))
    assert set(after.extra) == set(names)


def test_it_ends_where_all_together_are_best_and_fedavg_does_not():
    """Two clients pull one weight to 0 and 1, the second ten times as hard: best is 10 / 11."""

    def end(corrected: bool) -> float:
        x, c, own = 0.0, 0.0, [0.0, 0.0]
        for _ in range(60):
            ends, new = [], []
            for client, (goal, force) in enumerate([(0.0, 1.0), (1.0, 10.0)]):
                y, path, speed, drive = x, 0.0, 0.0, 0.0
                for _ in range(20):
                    drift = c - own[client] if corrected else 0.0
                    speed = 0.5 * speed + force * (y - goal) + drift
                    drive = 0.5 * drive - 1
                    y, path = y - 0.02 * speed, path - 0.02 * drive
                ends.append(y)
                new.append(own[client] - c + (x - y) / path)
            x, c, own = sum(ends) / 2, c + (sum(new) - sum(own)) / 2, new
        return x

    assert end(corrected=True) == pytest.approx(10 / 11, abs=1e-4)
    assert abs(end(corrected=False) - 10 / 11) > 0.05
