import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.counting import work_of
from tests.core.made import Made, conv
from tests.core.zoo_attention import ATTENTIVE_NETS, PositionNorms
from tests.core.zoo_cuts import ZOO, build, draw, graph_of, smallest
from tests.tiny import tiny_graph, tiny_net
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dapperfl import nets
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import _Sizes, cost, keep_for_budget
from dapperfl.core.rng import generator
from dapperfl.core.scores import l1_scores, random_scores
from dapperfl.core.state import num_bytes
from dapperfl.errors import BudgetError

RHOS = (0.2, 0.4, 0.6, 0.8)


@pytest.fixture(scope="module")
def resnets() -> dict[tuple[str, int], tuple[nn.Module, ChannelGraph]]:
    found = {}
    for name, side in (("resnet10", 32), ("resnet18", 28)):  # the sizes the paper measured at
        for width in (16, 64):
            net = nets.build(name, num_classes=10, width=width)
            found[name, width] = net, ChannelGraph.trace(net, torch.zeros(1, 3, side, side))
    return found


def test_dense_figures_are_those_of_the_footprint_tables(resnets):
    small = cost(resnets["resnet10", 64][1].full())
    large = cost(resnets["resnet18", 64][1].full())
    assert (small.parameters, small.macs) == (4_903_242, 254_170_112)
    assert (large.parameters, large.macs) == (11_173_962, 457_664_000)


@pytest.mark.parametrize("scope", ["inner", "all"])
@pytest.mark.parametrize("rho", RHOS)
def test_pruned_rows_of_the_footprint_tables_are_met_by_real_nets(resnets, rho, scope):
    for name in ("resnet10", "resnet18"):
        net, graph = resnets[name, 64]
        submodel = l1_scores(graph, net.state_dict()).top(rho, scope=scope)
        dense, price = cost(graph.full()), cost(submodel)
        held = sum(p.numel() for p in submodel.shrink(net).parameters())
        assert held == price.parameters
        assert price.parameters <= (1 - rho) * dense.parameters
        assert price.macs <= (1 - rho) * dense.macs


@pytest.mark.parametrize("scope", ["inner", "all"])
@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("name", ["resnet10", "resnet18"])
def test_the_budget_is_met_and_used(resnets, name, width, rho, scope):
    net, graph = resnets[name, width]
    submodel = random_scores(graph, generator(0, name)).top(rho, scope=scope)
    held = sum(p.numel() for p in submodel.shrink(net).parameters())
    share = held / sum(p.numel() for p in net.parameters())
    assert 1 - rho - 0.02 <= share <= 1 - rho


def test_counts_are_multiples_where_the_budget_allows(resnets):
    graph = resnets["resnet10", 64][1]
    counts = keep_for_budget(graph, 0.5, scope="all", multiple=8)
    assert all(count % 8 == 0 for count in counts.values())
    assert {group.stream for group in counts} == {True, False}
    assert not any(g.stream for g in keep_for_budget(graph, 0.5, scope="inner"))


def test_the_multiple_halves_until_the_budget_can_be_met():
    graph = tiny_graph()  # groups of 8 and 16: one multiple of 8 each leaves too much
    counts = keep_for_budget(graph, 0.9, scope="all", multiple=8)
    assert min(counts.values()) < 8
    assert (
        cost(l1_scores(graph, tiny_net().state_dict()).keep(counts)).parameters
        <= 0.1 * cost(graph.full()).parameters
    )


def test_an_unreachable_budget_names_the_smallest_share():
    with pytest.raises(BudgetError, match=r'smallest submodel with scope "inner" has 0\.\d+'):
        keep_for_budget(tiny_graph(), 0.9, scope="inner")


def test_streams_that_auto_leaves_alone_are_cut_where_a_budget_needs_it():
    graph = ChannelGraph.trace(
        nets.build("resnet10", num_classes=10, width=8), torch.zeros(1, 3, 32, 32)
    )
    inner, auto, everything = (
        partial(keep_for_budget, graph, scope=scope, multiple=1)
        for scope in ("inner", "auto", "all")
    )
    assert auto(0.6) == inner(0.6)
    with pytest.raises(BudgetError, match='scope "inner"'):
        inner(0.95)
    assert auto(0.95) == everything(0.95)


def test_an_unreachable_budget_says_what_stays_full_and_why():
    mixed = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Flatten(2), nn.GRU(64, 8, batch_first=True)
    )
    graph = ChannelGraph.trace(mixed, torch.zeros(1, 3, 8, 8))
    with pytest.raises(BudgetError, match=r'what stays full: no channel rule for "gru" in 3'):
        keep_for_budget(graph, 0.5, scope="all")


def test_a_multiple_that_leaves_much_of_a_budget_unspent_gives_way():
    """docs/deviations.md has these numbers."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    scores = random_scores(graph, generator(0))
    dense = cost(graph.full()).parameters
    shares = [cost(scores.top(0.2, multiple=m)).parameters / dense for m in (8, 1)]
    assert [round(share, 2) for share in shares] == [0.77, 0.79]
    wide = cost(random_scores(graph, generator(0)).top(0.5, multiple=8)).parameters / dense
    assert 0.4 <= wide <= 0.5


def test_a_single_narrow_group_keeps_what_its_budget_buys():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert list(keep_for_budget(graph, 0.2, scope="all").values()) == [6]  # not 4


def test_a_net_in_which_nothing_can_be_cut_takes_rho_zero_alone():
    whole = nn.Sequential(nn.Flatten(2), nn.GRU(64, 8, batch_first=True))
    graph = ChannelGraph.trace(whole, torch.zeros(1, 3, 8, 8))
    assert keep_for_budget(graph, 0.0, scope="all") == {}
    with pytest.raises(BudgetError, match=r'no channel of this net can be cut; .* "gru" in 1'):
        keep_for_budget(graph, 0.2, scope="all")


@pytest.mark.parametrize("rho", [-0.1, 1.0, float("nan")])
def test_a_rho_that_is_no_share_is_refused(rho):
    with pytest.raises(BudgetError, match="rho must be"):
        keep_for_budget(tiny_graph(), rho, scope="all")


def test_rho_zero_keeps_everything():
    graph = tiny_graph()
    assert keep_for_budget(graph, 0.0, scope="all") == {g: g.size for g in graph.groups}


@settings(max_examples=30, deadline=None)
@given(rho=st.floats(0.01, 0.85), multiple=st.integers(1, 16))
def test_no_budget_is_ever_exceeded(rho, multiple):
    graph = tiny_graph()
    submodel = random_scores(graph, generator(multiple)).top(rho, scope="all", multiple=multiple)
    assert cost(submodel).parameters <= (1 - rho) * cost(graph.full()).parameters + 1e-6


@pytest.mark.parametrize("cls", ZOO, ids=[cls.__name__ for cls in ZOO])
def test_no_net_exceeds_its_budget_whatever_ties_its_channels(cls):
    graph = graph_of(cls)
    for rho, multiple in itertools.product(RHOS, (1, 8)):
        try:
            submodel = random_scores(graph, generator(1)).top(rho, multiple=multiple)
        except BudgetError:
            continue
        assert cost(submodel).parameters <= (1 - rho) * cost(graph.full()).parameters + 1e-6


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_training_flops_are_those_torch_counts(rho):
    net = tiny_net()
    submodel = l1_scores(tiny_graph(net), net.state_dict()).top(rho, multiple=1)
    small = submodel.shrink(net)
    with FlopCounterMode(display=False) as counter:
        small(torch.randn(4, 3, 6, 6)).sum().backward()
    assert counter.get_total_flops() == 4 * cost(submodel).train_flops


@pytest.mark.parametrize("cls", ZOO, ids=[cls.__name__ for cls in ZOO])
def test_costs_are_those_torch_counts_whatever_the_net_and_the_cut(cls):
    graph = graph_of(cls)
    for submodel in (graph.full(), draw(graph, 3), smallest(graph)):
        net = build(cls)
        small = submodel.shrink(net).eval()
        price = cost(submodel)
        assert (price.macs, price.train_flops) == work_of(small, net.example(4))
        assert price.parameters == sum(p.numel() for p in small.parameters())


@pytest.mark.parametrize("name", nets.names())
def test_costs_of_the_shelf_are_those_torch_counts(name):
    net = nets.build(name, num_classes=10, width=8).eval()
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 32, 32))
    for rho in (0.0, 0.6):
        submodel = l1_scores(graph, net.state_dict()).top(rho)
        price = cost(submodel)
        expected = work_of(submodel.shrink(net), torch.randn(2, 3, 32, 32))
        assert (price.macs, price.train_flops) == expected


@pytest.mark.parametrize("cls", ATTENTIVE_NETS, ids=[cls.__name__ for cls in ATTENTIVE_NETS])
def test_a_budget_weighs_all_macs(cls):
    graph = graph_of(cls)
    for submodel in (graph.full(), draw(graph, 3), smallest(graph)):
        counts = {group: len(submodel.channels(group)) for group in graph.groups}
        price = cost(submodel)
        assert _Sizes(graph).of(counts) == pytest.approx((price.parameters, price.macs))


def test_a_norm_of_positions_works_once_for_each_kept_channel():
    graph = graph_of(PositionNorms)
    submodel = graph.full().from_lists(graph, {"conv1": [1, 4], "conv2": [0]})
    norms = [layer for layer in graph.arithmetic if layer.norm]
    assert [layer.positions for layer in norms] == [8, 6]
    everything_else = 3 * 4 * 16 + 2 * (3 * 3 + 3) * 16 + 1 * 2 * 3 * 16 + 1 * 5
    assert cost(submodel).macs == everything_else + 2 * (2 + 1) * 16


def test_a_group_kept_full_by_the_trial_leaves_the_count_of_others_right():
    def forward(net, x):
        return net.fc(net.norm(net.b(net.a(x)).flatten(2)).view(-1, 6 * 64))

    net = Made(forward, a=conv(3, 8), b=conv(8, 6), norm=nn.LayerNorm(64), fc=nn.Linear(384, 5))
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert [group.name for group in graph.groups] == ["a"]
    assert cost(smallest(graph)).macs == 64 * 27 + 6 * 9 * 64 + 2 * 6 * 64 + 6 * 64 * 5


def test_upload_is_the_small_state_and_a_bit_a_channel():
    net = tiny_net()
    submodel = l1_scores(tiny_graph(net), net.state_dict()).top(0.5)
    state = submodel.shrink(net).state_dict()
    assert cost(submodel).upload_bytes == num_bytes(state) + (8 + 16) // 8
