from math import sqrt

import pytest
import torch
from tests.runtime.letters import GLOBAL, GRAPH, SMALL, update
from tests.tiny import tiny_examples, tiny_graph, tiny_net
from torch import nn

from dapperfl import methods
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import Device, LocalModel, Work
from dapperfl.core.scores import l1_scores
from dapperfl.core.state import State, snapshot
from dapperfl.data.batches import Batches
from dapperfl.runtime.drift import drift, nearer
from dapperfl.runtime.guard import GuardSettings
from dapperfl.runtime.local import Trade
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.training import train_client


def norm(state: State) -> float:
    parts = [state[name].double().flatten() for name in GRAPH.parameters]
    return float(torch.cat(parts).norm())


def test_a_model_that_stayed_has_no_drift():
    assert drift(GLOBAL, LocalModel(SMALL.slice(GLOBAL.weights), SMALL)) == 0


def test_drift_is_in_norms_of_what_was_sent():
    doubled = {name: tensor * 2 for name, tensor in GLOBAL.weights.items()}
    assert drift(GLOBAL, LocalModel(doubled, GRAPH.full())) == pytest.approx(1)
    assert drift(GLOBAL, update().model) == pytest.approx(0.01, rel=1e-5)


def test_a_net_of_zeros_counts_in_ones():
    zeros = {name: torch.zeros_like(tensor) for name, tensor in GLOBAL.weights.items()}
    one = zeros | {"fc.bias": torch.tensor([3.0, 4.0, 0.0])}
    assert drift(LocalModel(zeros, GRAPH.full()), LocalModel(one, GRAPH.full())) == 5


def test_running_statistics_do_not_count():
    moved = GLOBAL.weights | {"bn1.running_var": torch.full((16,), 1e6)}
    assert drift(GLOBAL, LocalModel(moved, GRAPH.full())) == 0


def test_a_small_model_made_smaller_is_compared_channel_by_channel():
    tiny = l1_scores(GRAPH, GLOBAL.weights).top(0.7, scope="all", multiple=1)
    sent = LocalModel(SMALL.slice(GLOBAL.weights), SMALL)
    weights = tiny.slice(GLOBAL.weights)
    assert not bool((tiny.flags & ~SMALL.flags).any())
    assert drift(sent, LocalModel(weights, tiny)) == 0
    moved = weights | {"fc.bias": weights["fc.bias"] + 1}
    assert drift(sent, LocalModel(moved, tiny)) == pytest.approx(sqrt(3) / norm(weights))


def test_a_share_of_the_way():
    doubled = {name: tensor * 2 for name, tensor in GLOBAL.weights.items()}
    back = nearer(GLOBAL, LocalModel(doubled, GRAPH.full()), 0.25)
    for name in GRAPH.parameters:
        assert torch.allclose(back.weights[name], GLOBAL.weights[name] * 1.25)
    assert torch.equal(back.weights["bn1.running_var"], doubled["bn1.running_var"])
    assert drift(GLOBAL, back) == pytest.approx(0.25)


def test_no_name_of_a_shared_weight_is_overlooked():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    net[1].weight = net[0].weight
    sent = LocalModel(snapshot(net), ChannelGraph.trace(net, torch.zeros(1, 4)).full())
    back = LocalModel(sent.weights | {"1.weight": torch.full((4, 4), 1e3)}, sent.submodel)
    assert drift(sent, back) > 100
    assert float(nearer(sent, back, 1e-3).weights["1.weight"].abs().max()) < 2


@pytest.mark.parametrize("name", methods.names())
def test_training_as_in_the_paper_stays_far_from_absurd(name):
    method = methods.load(name)()
    net = method.prepare(tiny_net(), "fc")
    model = LocalModel(snapshot(net), tiny_graph(net).full())
    trade = Trade(method, net, TrainSettings(epochs=5, batch_size=8))
    data = Batches(tiny_examples(24), batch_size=8, mean=(0.5,), std=(0.25,))
    for round_num in (1, 2, 3):
        work = Work(round_num, Device(0, "light", 0.4, 24), model, 5)
        if name == "nefl":
            work = Work(round_num, work.device, model, 5, {"rung": torch.tensor(0)})
        back = train_client(trade, work, data, seed=0).update.model
        assert 0 < drift(model, back) < GuardSettings().max_drift / 50
        weights = back.submodel.scatter(back.weights, model.weights)
        model = LocalModel(weights, model.submodel)
