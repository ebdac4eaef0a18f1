import pytest
import torch
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.messages import LocalModel
from dapperfl.core.rng import generator
from dapperfl.core.scores import (
    Scores,
    l1_scores,
    ordered_scores,
    random_scores,
)


def test_l1_sums_the_rows_that_write_a_channel_and_no_norm():
    net = tiny_net()
    graph = tiny_graph(net)
    stream, inner = graph.group("stem"), graph.group("conv1")
    scores = l1_scores(graph, net.state_dict())
    rows = net.stem.weight.abs().sum((1, 2, 3)) + net.conv2.weight.abs().sum((1, 2, 3))
    assert torch.allclose(scores.values[stream], rows.double(), rtol=1e-5)
    own = net.conv1.weight.abs().sum((1, 2, 3))
    assert torch.allclose(scores.values[inner], own.double(), rtol=1e-5)


def test_a_channel_whose_gate_is_zero_can_still_win():
    net = tiny_net()
    graph = tiny_graph(net)
    before = l1_scores(graph, net.state_dict()).top(0.5).to_lists()
    net.bn1.weight.data.zero_()
    net.bn2.weight.data.zero_()
    assert l1_scores(graph, net.state_dict()).top(0.5).to_lists() == before


def test_the_largest_are_kept_and_ties_go_to_the_first():
    graph = tiny_graph()
    stream, inner = graph.group("stem"), graph.group("conv1")
    values = {stream: torch.tensor([0.0, 3, 1, 3, 0, 2, 3, 0]), inner: torch.zeros(16)}
    kept = Scores(graph, values).keep({stream: 4, inner: 3})
    assert kept.channels(stream).tolist() == [1, 3, 5, 6]
    assert kept.channels(inner).tolist() == [0, 1, 2]


def test_ordered_scores_give_a_prefix_or_a_rolling_window():
    graph = tiny_graph()
    stream = graph.group("stem")
    prefix = ordered_scores(graph).keep({stream: 3})
    assert prefix.channels(stream).tolist() == [0, 1, 2]
    rolled = ordered_scores(graph, start=6).keep({stream: 3})
    assert rolled.channels(stream).tolist() == [0, 6, 7]


def test_random_scores_depend_on_their_generator_alone():
    graph = tiny_graph()
    first = random_scores(graph, generator(0)).top(0.5).to_lists()
    assert random_scores(graph, generator(0)).top(0.5).to_lists() == first
    others = [random_scores(graph, generator(seed)).top(0.5).to_lists() for seed in range(1, 6)]
    assert any(other != first for other in others)


@pytest.mark.parametrize("scope", ["inner", "all"])
def test_top_leaves_groups_out_of_scope_whole(scope):
    graph = tiny_graph()
    kept = random_scores(graph, generator(0)).top(0.4, scope=scope, multiple=1).kept
    assert any(group.stream for group in kept) == (scope == "all")


def test_what_a_notebook_shows_is_short():
    graph = tiny_graph()
    scores = l1_scores(graph, tiny_net().state_dict())
    kept = scores.top(0.4, scope="all", multiple=1)
    assert repr(graph.full()) == "Submodel(whole)"
    for name, count in {g.name: len(channels) for g, channels in kept.kept.items()}.items():
        assert f"{name}: {count} of " in repr(kept)
    model = LocalModel(kept.slice(tiny_net().state_dict()), kept)
    for shown in (graph, scores, kept, model):
        assert len(repr(shown)) < 200
        assert repr(shown).startswith(type(shown).__name__)
