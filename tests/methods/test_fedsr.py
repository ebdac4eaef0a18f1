"""FedSR against the formulas, and a whole round against a client loop written here."""

import pytest
import torch
from tests.methods.rig import server_of, work_for
from tests.tiny import TinyNet, tiny_federation, tiny_net
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, linear, softplus

from dapperfl.core.losses import feature_norm
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import derive_seed, generator
from dapperfl.core.state import State
from dapperfl.errors import TraceError
from dapperfl.methods.fedsr import FedSR, ProbabilisticHead, class_divergence, mean_and_sigma
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.simulator import Simulator

BATCH = Batch(torch.randn(5, 3, 6, 6), torch.tensor([0, 1, 2, 0, 1]))


def test_the_defaults_are_the_papers():
    method = FedSR()
    assert (method.alpha_l2r, method.alpha_cmi) == (0.01, 0.001)
    assert (method.l2r_power, method.samples) == (1, 20)
    assert FedSR.from_preset("official").alpha_cmi == 0.0005
    assert FedSR.from_preset("paper").l2r_power == 2


def test_l2r_by_hand():
    z = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert feature_norm(z, FedSR().l2r_power).item() == (5 + 2) / 2  # 3.5
    assert feature_norm(z, 2).item() == (25 + 4) / 2  # 14.5


def test_cmi_by_hand_and_by_torch():
    # mu = (.5, -1), s = (0, 1), r_mean = 0, raw = 1, C = 1: terms .3508 and .2899
    mean, sigma = mean_and_sigma(torch.tensor([[0.5, -1.0, 0.0, 1.0]]))
    r_mean, r_sigma = torch.zeros(1, 2), softplus(torch.ones(1, 2))
    value = class_divergence(mean, sigma, (r_mean, r_sigma))
    terms = kl_divergence(Normal(mean, sigma), Normal(r_mean, r_sigma)).flatten()
    assert terms.tolist() == pytest.approx([0.3508, 0.2899], abs=5e-5)
    assert value.item() == pytest.approx(0.640707, abs=5e-6)
    assert value.item() == pytest.approx(terms.sum().item(), abs=1e-6)


def test_cmi_of_several_positions_is_the_mean_of_theirs():
    mean, sigma = torch.randn(4, 5, 6), torch.rand(4, 5, 6) + 0.1
    gaussian = torch.randn(4, 6), torch.rand(4, 6) + 0.1
    apart = [class_divergence(mean[:, i], sigma[:, i], gaussian) for i in range(5)]
    assert torch.allclose(class_divergence(mean, sigma, gaussian), torch.stack(apart).mean())


def test_cmi_is_zero_only_where_the_two_gaussians_agree():
    mean, sigma = torch.randn(3, 4), torch.rand(3, 4) + 0.1
    assert class_divergence(mean, sigma, (mean, sigma)).item() == pytest.approx(0, abs=1e-6)
    assert class_divergence(mean, sigma, (mean + 0.1, sigma)).item() > 1e-3
    assert class_divergence(mean, sigma, (mean, 1.1 * sigma)).item() > 1e-3


def test_a_very_small_spread_stays_finite():
    mean, sigma = mean_and_sigma(torch.tensor([[0.0, -300.0]]).requires_grad_())
    value = class_divergence(mean, sigma, (torch.zeros(1, 1), torch.ones(1, 1)))
    value.backward()
    assert value.isfinite()


def test_the_class_gaussians_start_as_the_official_code_does_and_are_found_again():
    method = FedSR()
    work = work_for(server_of(method))
    own = method.own(work)
    assert own["r_mean"].shape == (3, 8)  # classes, features
    assert softplus(own["r_raw"]).unique().item() == pytest.approx(1.313262, abs=1e-6)
    assert not own["r_mean"].any()
    assert own["scale"].item() == 1
    kept = {name: tensor + 1 for name, tensor in own.items()}
    again = method.own(work_for(server_of(method), kept))
    assert all(again[name] is kept[name] for name in kept)


def test_the_layer_goes_before_the_predictor_and_adds_what_it_should():
    net = FedSR().prepare(tiny_net(), "fc")
    added = sum(p.numel() for p in net.parameters()) - sum(
        p.numel() for p in tiny_net().parameters()
    )
    assert added == 2 * 8 * 8 + 2 * 8
    with pytest.raises(TraceError, match=r"nn\.Linear"):
        FedSR().prepare(tiny_net(), None)
    alone = FedSR().prepare(nn.Linear(4, 3), "")
    assert alone(torch.zeros(2, 4)).shape == (2, 3)


class AsksItsHead(TinyNet):
    """Reads the sizes, the type and the device of its last layer."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(torch.relu(self.stem(x)))
        x = self.conv2(x).mean((2, 3)).to(self.fc.weight).view(-1, self.fc.in_features)
        logits: Tensor = self.fc(x)
        assert self.fc.bias is not None
        return logits.reshape(len(x), self.fc.out_features)


def test_a_net_may_ask_its_last_layer_what_it_is():
    simulator = Simulator(
        method=FedSR(), net=AsksItsHead(), federation=tiny_federation((0.0, 0.0)), rounds=1
    )
    (record,) = simulator.rounds()
    assert not record.left_out


def test_with_no_spread_and_no_terms_it_is_the_net_with_one_more_layer():
    net = FedSR(samples=20).prepare(tiny_net(), "fc").eval()
    head = net.get_submodule("fc")
    assert isinstance(head, ProbabilisticHead)
    head.fedsr_projection.weight.data[8:] = 0
    head.fedsr_projection.bias.data[8:] = -300
    features, _ = Net(tiny_net().eval(), "fc").split(BATCH.x)
    plain = head.fedsr_predictor(head.fedsr_projection(features)[:, :8])
    assert torch.allclose(net(BATCH.x), plain.log_softmax(1), atol=1e-4)


def test_at_test_time_samples_are_averaged_and_no_random_number_is_drawn():
    net = FedSR(samples=500).prepare(tiny_net(), "fc").eval()
    state = torch.get_rng_state()
    first = net(BATCH.x)
    assert torch.equal(first, net(BATCH.x))
    assert torch.allclose(first[:2], net(BATCH.x[:2]), atol=1e-5)  # alike in any batch
    assert torch.equal(state, torch.get_rng_state())
    assert torch.allclose(first.exp().sum(1), torch.ones(5), atol=1e-5)
    features, _ = Net(tiny_net().eval(), "fc").split(BATCH.x)
    head = net.get_submodule("fc")
    assert isinstance(head, ProbabilisticHead)
    mean, sigma = mean_and_sigma(head.fedsr_projection(features))
    noise = torch.randn(4000, 5, 8, generator=generator(1, "test"))
    expected = head.fedsr_predictor(mean + sigma * noise).softmax(-1).mean(0)
    assert torch.allclose(first.exp(), expected, atol=0.05)


class PlainHead(nn.Module):
    """The oracle's net: the same layers, the arithmetic of section (c) spelt out."""

    def __init__(self, weights: State) -> None:
        super().__init__()
        self.net = TinyNet()
        self.net.fc = nn.ModuleDict(  # type: ignore[assignment]
            {"fedsr_projection": nn.Linear(8, 16), "fedsr_predictor": nn.Linear(8, 3)}
        )
        self.net.load_state_dict(weights)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        net, parts = self.net, dict(self.net.named_parameters())
        x = torch.relu(net.stem(x))
        x = torch.relu(x + net.bn2(net.conv2(torch.relu(net.bn1(net.conv1(x))))))
        projection, predictor = (
            [parts[f"fc.fedsr_{part}.{kind}"] for kind in ("weight", "bias")]
            for part in ("projection", "predictor")
        )
        both = linear(x.mean((2, 3)), *projection)
        mean, sigma = both[:, :8], softplus(both[:, 8:]) + 1e-6
        z = mean + sigma * torch.randn_like(sigma)
        return linear(z, *predictor), z, mean, sigma


def test_a_round_is_that_of_a_plain_client_loop():
    settings = TrainSettings(epochs=2, batch_size=4, lr=0.05)
    world = tiny_federation((0.0, 0.5))
    method = FedSR(alpha_l2r=0.1, alpha_cmi=0.05)
    simulator = Simulator(
        method=method, net=tiny_net(), federation=world, train=settings, rounds=1, seed=3
    )
    start = simulator.start().server.weights
    sums: State = {}
    for device in world.devices:
        net = PlainHead(start)
        r_mean, r_raw = (torch.full((3, 8), v, requires_grad=True) for v in (0.0, 1.0))
        scale = torch.ones((), requires_grad=True)
        sgd = torch.optim.SGD(
            [*net.parameters(), r_mean, r_raw, scale], lr=0.05, momentum=0.9, weight_decay=1e-5
        )
        shuffles = generator(3, "batches", 1, device.id)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(3, "dropout", 1, device.id))
            for _ in range(2):
                for x, y in simulator.data[device.id].epoch(shuffles):
                    logits, z, mean, sigma = net(x)
                    loss = cross_entropy(logits, y) + 0.1 * z.norm(dim=1).mean()
                    ours = Normal(scale * mean, scale * sigma)
                    theirs = Normal(r_mean[y], softplus(r_raw[y]))
                    loss = loss + 0.05 * kl_divergence(ours, theirs).sum(1).mean()
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
        for name, tensor in net.net.state_dict().items():
            sums[name] = sums.get(name, torch.zeros(())) + tensor * device.num_samples
    (record,) = simulator.rounds()
    total = sum(device.num_samples for device in world.devices)
    for name, tensor in record.snapshot.server.weights.items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, sums[name] / total, atol=1e-5), name
    memory = record.snapshot.memories[1]  # of the last client of the loop: trained, and it stays
    assert torch.allclose(memory["r_mean"], r_mean.detach(), atol=1e-5)
    assert torch.allclose(memory["scale"], scale.detach(), atol=1e-5)
    assert memory["r_mean"].abs().max() > 1e-3
    assert not any("r_mean" in name for name in record.snapshot.server.weights)
