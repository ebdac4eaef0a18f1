from math import exp, log

import pytest
import torch
from tests.methods.rig import server_of, work_for
from tests.tiny import TinyNet, tiny_net
from torch.nn.functional import cosine_similarity, cross_entropy

from dapperfl.core.net import Batch, Net
from dapperfl.core.state import snapshot
from dapperfl.methods.moon import Moon

BATCH = Batch(torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1]))
EAST, NORTH = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])


def test_the_defaults_are_the_papers_and_the_preset_is_the_releases():
    assert (Moon().mu, Moon().tau) == (1, 0.5)
    assert (Moon.from_preset("release").mu, Moon.from_preset("release").tau) == (5, 0.5)


@pytest.mark.parametrize(
    ("to_global", "to_previous", "expected"),
    [
        (NORTH, NORTH, log(2)),
        (EAST, NORTH, log(1 + exp((0 - 1) / 0.5))),  # .126928
        (NORTH, EAST, log(1 + exp((1 - 0) / 0.5))),  # 2.126928
    ],
)
def test_the_contrast_by_hand(to_global, to_previous, expected):
    z = 3 * EAST  # lengths do not matter
    assert Moon().contrast(z, to_global, to_previous).item() == pytest.approx(expected, abs=1e-6)
    assert round(expected, 6) in (0.693147, 0.126928, 2.126928)


def test_the_contrast_of_equal_models_has_no_gradient():
    z = torch.randn(4, 6, requires_grad=True)
    same = torch.randn(4, 6)
    Moon().contrast(z, same, same).backward()
    assert z.grad is not None
    assert torch.allclose(z.grad, torch.zeros_like(z), atol=1e-8)


def test_the_objective_from_the_formula():
    method, net = Moon(mu=0.7, tau=0.3), Net(tiny_net(7), "fc")
    server, previous = server_of(method), snapshot(tiny_net(8))
    ours = method.loss(net, BATCH, work_for(server, previous))
    z, logits = Net(tiny_net(7), "fc").split(BATCH.x)  # in training mode
    near = cosine_similarity(z, Net(tiny_net(0).eval(), "fc").split(BATCH.x)[0]) / 0.3
    far = cosine_similarity(z, Net(tiny_net(8).eval(), "fc").split(BATCH.x)[0]) / 0.3
    contrast = -(near.exp() / (near.exp() + far.exp())).log().mean()
    expected = cross_entropy(logits, BATCH.y) + 0.7 * contrast
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


class WritesItsInput(TinyNet):
    """Normalises pictures where they are."""

    def forward(self, x):
        return super().forward(x.sub_(0.5))


def test_nets_that_write_into_their_input_all_see_the_same_pictures():
    server, previous = server_of(Moon()), snapshot(tiny_net(8))
    net, plain = WritesItsInput(), tiny_net(7)
    net.load_state_dict(plain.state_dict())
    ours = Moon().loss(Net(net, "fc"), BATCH, work_for(server, previous))
    moved = Batch(BATCH.x - 0.5, BATCH.y)
    theirs = Moon().loss(Net(plain, "fc"), moved, work_for(server, previous))
    assert ours.item() == theirs.item()
    ours.backward()


def test_the_extra_forwards_leave_the_local_net_alone():
    server, previous = server_of(Moon()), snapshot(tiny_net(8))
    ours, plain = tiny_net(7), tiny_net(7)
    before = torch.get_rng_state()
    Moon().loss(Net(ours, "fc"), BATCH, work_for(server, previous))
    Moon().loss(Net(plain, "fc"), BATCH, work_for(server))
    assert torch.equal(before, torch.get_rng_state())
    assert ours.training
    assert ours.bn1.training
    for name, tensor in ours.state_dict().items():  # one update of the statistics, not three
        assert torch.equal(tensor, plain.state_dict()[name]), name


def test_gradients_flow_only_through_the_local_representation():
    server, previous = server_of(Moon()), snapshot(tiny_net(8))
    net = tiny_net(7)
    Moon().loss(Net(net, "fc"), BATCH, work_for(server, previous)).backward()
    assert not any(
        tensor.requires_grad for tensor in [*server.weights.values(), *previous.values()]
    )
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_client_without_history_trains_plainly_and_keeps_the_model_it_made():
    method, net = Moon(), tiny_net(7)
    work = work_for(server_of(method))
    assert method.extra_forwards(work) == 0
    plain = cross_entropy(net.eval()(BATCH.x), BATCH.y)
    assert method.loss(Net(net, "fc"), BATCH, work).item() == plain.item()
    memory = method.report(Net(net, "fc"), iter([]), work).memory
    kept = snapshot(net)
    assert memory.keys() == kept.keys()
    net.fc.weight.data.add_(1)  # the server's next model must not change what was kept
    assert all(torch.equal(memory[name], kept[name]) for name in kept)
    assert method.extra_forwards(work_for(server_of(method), memory)) == 2
