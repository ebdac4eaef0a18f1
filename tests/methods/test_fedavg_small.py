import torch
from tests.methods.rig import assigned, round_of, server_of
from tests.tiny import tiny_federation, tiny_net

from dapperfl.core.cost import cost
from dapperfl.methods.fedavg_small import FedAvgSmall
from dapperfl.runtime.evaluation import evaluate
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.simulator import Simulator

SMALL = FedAvgSmall(multiple=1)
RHOS = (0.0, 0.4, 0.6)


def test_everyone_trains_the_net_of_the_weakest():
    server = server_of(SMALL, RHOS)
    full = cost(server.model.submodel).parameters
    sent = [assigned(SMALL, server, device) for device in range(3)]
    assert [assignment.device.rho for assignment in sent] == list(RHOS)  # as it was
    assert len({str(assignment.model.submodel.to_lists()) for assignment in sent}) == 1
    assert cost(sent[0].model.submodel).parameters <= 0.4 * full
    lists = sent[0].model.submodel.to_lists()
    assert all(kept == list(range(len(kept))) for kept in lists.values())
    assert SMALL.compact(server, 0.0).to_lists() == lists


def test_weights_outside_the_prefix_never_change():
    simulator = Simulator(
        method=SMALL,
        net=tiny_net(),
        federation=tiny_federation(RHOS),
        train=TrainSettings(epochs=2, batch_size=4, lr=0.05),
        rounds=3,
    )
    start = simulator.start().server
    *_, last = simulator.rounds()
    kept = SMALL.compact(start, 0.0)
    inside = kept.mask({name: torch.ones_like(t) for name, t in start.weights.items()})
    after = last.snapshot.server.weights
    for name, tensor in start.weights.items():
        outside = inside[name] == 0
        assert torch.equal(after[name][outside], tensor[outside]), name
    assert not torch.equal(after["conv1.weight"], start.weights["conv1.weight"])


def test_it_is_evaluated_as_the_small_net_it_is():
    server = round_of(SMALL, server_of(SMALL, RHOS), [lambda t: t * 1.1] * 3)
    model = SMALL.deliver(server)
    assert model.weights["conv1.weight"].numel() < server.weights["conv1.weight"].numel()
    small = model.submodel.shrink(tiny_net())
    small.load_state_dict(model.weights)
    assert sum(p.numel() for p in small.parameters()) == cost(model.submodel).parameters
    simulator = Simulator(method=SMALL, net=tiny_net(), federation=tiny_federation(RHOS))
    batches = {name: each.clean() for name, each in simulator.judge.test.items()}
    assert simulator.evaluate(model) == evaluate(small.eval(), batches)


def test_in_the_small_net_it_is_fedavg():
    server = server_of(SMALL, RHOS)
    after = round_of(SMALL, server, [lambda t: t + 1, lambda t: t + 2, lambda t: t + 3])
    model, before = SMALL.deliver(after), SMALL.deliver(server)
    for name in server.model.submodel.graph.parameters:
        # samples 10, 20, 30: (10·1 + 20·2 + 30·3) / 60
        moved = model.weights[name] - before.weights[name]
        assert torch.allclose(moved, torch.full_like(moved, 140 / 60), atol=1e-5), name
