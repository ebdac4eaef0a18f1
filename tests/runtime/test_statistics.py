from functools import partial

import pytest
import torch
from tests.tiny import tiny_examples, tiny_graph, tiny_net
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.core.messages import (
    ClientCost,
    Device,
    LocalModel,
    Moments,
    ServerState,
    StatisticsTask,
)
from dapperfl.core.scores import l1_scores
from dapperfl.core.state import snapshot
from dapperfl.data.batches import Batches
from dapperfl.runtime.statistics import (
    batch_moments,
    finite,
    measure_moments,
    normalising_by_batch,
    recalibrate,
)


def task_for(net: nn.Module) -> StatisticsTask:
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 6, 6))
    return StatisticsTask(1, Device(0, "light", 0.0, 10), LocalModel(snapshot(net), graph.full()))


def measured(net: nn.Module, data: Batches, task: StatisticsTask | None = None) -> Moments:
    task = task or task_for(net)
    normalising_by_batch(net)
    return finite(measure_moments(net, task, data, partial(batch_moments, net)))


def test_moments_are_those_of_the_norm_layers_input():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    data = Batches(tiny_examples(10), batch_size=4)
    moments = measured(net, data)
    seen = net[0](next(data.clean(10)).x).detach().double()  # large batches: one holds all
    mean = seen.mean((0, 2, 3))
    assert torch.allclose(moments.means["1.running_mean"], mean, atol=1e-6)
    second = seen.var((0, 2, 3)) + mean.square()
    assert torch.allclose(moments.second["1.running_var"], second, atol=1e-5)


def test_batches_count_by_their_size(monkeypatch):
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    data = Batches(tiny_examples(10), batch_size=16)
    whole = measured(net, data)
    monkeypatch.setattr("dapperfl.runtime.statistics.LARGE_BATCH", 4)
    parts = measured(net, data)
    name = "1.running_mean"
    assert torch.allclose(whole.means[name], parts.means[name], atol=1e-6)


def test_a_pass_draws_nothing_and_can_be_repeated():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3)
    )
    rng = torch.get_rng_state()
    data = Batches(tiny_examples(10), batch_size=4)
    first, second = measured(net, data), measured(net, data)
    assert torch.equal(first.means["1.running_mean"], second.means["1.running_mean"])
    assert torch.equal(rng, torch.get_rng_state())


class KeepsStatistics(nn.Module):
    """Never trains the statistics of its first norm, as nets that are fine-tuned do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, 3)

    def train(self, mode=True):
        super().train(mode)
        self.first.eval()
        return self

    def forward(self, x):
        return self.fc(self.second(self.first(x)).mean((2, 3)))


def test_statistics_that_a_net_does_not_train_stay():
    net = KeepsStatistics()
    kept = torch.tensor([0.3, 1.7, -2.0])
    net.first.running_mean = kept.clone()
    net.first.running_var = kept.square()
    task = task_for(net)
    moments = measured(net, Batches(tiny_examples(10), batch_size=4), task)
    after = recalibrate(ServerState(0, task.model, ()), [moments]).weights
    assert torch.allclose(after["first.running_mean"], kept)
    assert torch.allclose(after["first.running_var"], kept.square())
    assert not torch.allclose(after["second.running_mean"], torch.zeros(3))


@pytest.mark.parametrize(
    ("power", "mean", "second"),
    [
        (1.0, (9 * 1 + 25 * 3) / 34, (9 * 2 + 25 * 13) / 34),
        (0.5, (3 * 1 + 5 * 3) / 8, (3 * 2 + 5 * 13) / 8),
        (0.0, 2.0, 7.5),
    ],
)
def test_moments_are_pooled_by_samples_to_a_power(power, mean, second):
    device = Device(0, "light", 0.0, 1)

    def moments(samples: int, mean: float, second: float) -> Moments:
        means = {"bn.running_mean": torch.tensor([mean]).double()}
        squares = {"bn.running_var": torch.tensor([second]).double()}
        return Moments(device, samples, ClientCost(), means, squares)

    weights = {
        "bn.running_mean": torch.zeros(1),
        "bn.running_var": torch.ones(1),
        "w": torch.ones(1),
    }
    server = ServerState(1, LocalModel(weights, tiny_graph().full()), ())
    after = recalibrate(server, [moments(9, 1, 2), moments(25, 3, 13)], power=power)
    assert after.weights["bn.running_mean"].item() == pytest.approx(mean)
    assert after.weights["bn.running_var"].item() == pytest.approx(second - mean**2)
    assert after.weights["w"] is weights["w"]
    assert weights["bn.running_mean"].item() == 0


def test_a_channel_has_the_statistics_of_those_who_hold_it():
    """Fast equals slow: pooled channel by channel, from whoever holds it; others stay."""
    net, graph = tiny_net(), tiny_graph()
    server = ServerState(1, LocalModel(snapshot(net), graph.full()), ())
    layers = [name for name in graph.shapes if name.endswith("running_mean")]
    scores = l1_scores(graph, snapshot(net))
    parts = {rho: scores.top(rho, scope="all", multiple=1) for rho in (0.3, 0.6, 0.8)}
    rng = torch.Generator().manual_seed(0)
    found = []
    for number, (rho, part) in enumerate(parts.items()):
        sizes = {name: part.shapes[name][0] for name in layers}
        means = {n: torch.randn(s, generator=rng).double() for n, s in sizes.items()}
        second = {name.replace("mean", "var"): means[name].square() + number + 1 for name in layers}
        found.append(Moments(Device(number, "x", rho, 9), 10 + number, ClientCost(), means, second))
    held = {moment.device: parts[moment.device.rho] for moment in found}
    after = recalibrate(server, found, held).weights
    for name in layers:
        spread = name.replace("mean", "var")
        for channel in range(graph.shapes[name][0]):
            seen = []
            for moment in found:
                kept = dict(parts[moment.device.rho].indices.get(name, ()))
                place = kept[0].tolist() if kept else list(range(graph.shapes[name][0]))
                if channel in place:
                    at = place.index(channel)
                    values = float(moment.means[name][at]), float(moment.second[spread][at])
                    seen.append((moment.num_samples, *values))
            if not seen:
                assert after[name][channel] == server.weights[name][channel]
                assert after[spread][channel] == server.weights[spread][channel]
                continue
            total = sum(n for n, *_ in seen)
            mean = sum(n * m for n, m, _ in seen) / total
            variance = sum(n * s for n, _, s in seen) / total - mean**2
            assert float(after[name][channel]) == pytest.approx(mean, abs=1e-6)
            assert float(after[spread][channel]) == pytest.approx(variance, abs=1e-5)
    most = sum(parts[0.3].shapes[name][0] for name in layers)
    assert 0 < most < sum(graph.shapes[name][0] for name in layers)  # some channels have nobody


def test_without_moments_the_server_stays_as_it_is():
    server = ServerState(1, LocalModel({}, tiny_graph().full()), ())
    assert recalibrate(server, []) is server


def test_its_cost_is_a_forward_pass_of_the_whole_net():
    net = tiny_net()
    graph = tiny_graph(net)
    task = StatisticsTask(1, Device(0, "light", 0.8, 10), LocalModel(snapshot(net), graph.full()))
    spent = measured(net, Batches(tiny_examples(10), batch_size=4), task).cost
    full = cost(graph.full())
    assert spent.train_flops == 2 * full.macs * 10
    assert spent.bytes_down == full.upload_bytes
    assert spent.bytes_up == 2 * 4 * (16 + 8)  # mean and second moment of two norms, float32
    assert spent.peak_parameters == full.parameters


class Shared(nn.Module):
    """One norm over two scales, as the head of a pyramid has it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.BatchNorm2d(4)

    def forward(self, x):
        scales = self.norm(self.conv(x)), self.norm(10 * self.conv(x[..., ::2, ::2]) + 1)
        return self.last(scales[0])


def test_a_norm_that_is_called_twice_has_the_moments_of_both_calls():
    net = Shared()
    x = torch.randn(6, 3, 4, 4)
    with torch.no_grad():
        small, large = net.conv(x), 10 * net.conv(x[..., ::2, ::2]) + 1
    mean = sum(each.mean((0, 2, 3)) for each in (small, large)) / 2
    second = sum(each.square().mean((0, 2, 3)) for each in (small, large)) / 2
    normalising_by_batch(net)
    for _ in range(2):  # nothing of a pass is left for the next
        found = batch_moments(net, x)
        assert torch.allclose(found[0, :4].float(), mean, atol=1e-5)
        assert torch.allclose(found[1, :4].float(), second, rtol=0.05)  # variances are of n - 1
        assert found.shape == (2, 8)
    assert not net.norm._forward_pre_hooks


def test_a_norm_with_several_names_has_what_was_measured_under_each():
    block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    net = nn.Sequential(block, block, nn.Flatten(), nn.Linear(108, 3))
    task = task_for(net)
    moments = measured(net, Batches(tiny_examples(10), batch_size=4), task)
    assert list(moments.means) == ["0.1.running_mean", "1.1.running_mean"]
    after = recalibrate(ServerState(0, task.model, ()), [moments]).weights
    net.load_state_dict(after)  # the last of the names is the one that stays
    assert torch.allclose(
        net.state_dict()["1.1.running_mean"], moments.means["0.1.running_mean"].float()
    )


def test_who_answers_first_does_not_decide_about_a_bit():
    layer, channels = nn.BatchNorm1d(500), 500
    graph = ChannelGraph.trace(nn.Sequential(nn.Linear(3, channels), layer), torch.zeros(2, 3))
    weights = {f"1.running_{name}": torch.zeros(channels) for name in ("mean", "var")}
    server = ServerState(0, LocalModel(weights, graph.full()), ())
    luck = torch.Generator().manual_seed(0)

    def found(device: int) -> Moments:  # far from zero, and close together
        mean = (100 + 0.1 * torch.randn(channels, generator=luck)).double()
        names = "1.running_mean", "1.running_var"
        known = Device(device, "light", 0.0, 10 + device)
        spent = ClientCost()
        return Moments(
            known, 10 + device, spent, {names[0]: mean}, {names[1]: mean.square() + 0.01}
        )

    answers = [found(device) for device in range(6)]
    forwards, backwards = (
        recalibrate(server, each, power=0.5).weights for each in (answers, answers[::-1])
    )
    assert all(torch.equal(forwards[name], backwards[name]) for name in weights)
