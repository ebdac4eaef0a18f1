"""Cuts that rules cannot judge are found by trying them."""

import random

import numpy as np
import pytest
import torch
from tests.core.made import Made, conv, gap, learnt, trace
from torch import nn
from torch.nn import functional as F

from dapperfl import nets
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import keep_for_budget
from dapperfl.core.trial import HALF, NoDropout, Trial
from dapperfl.errors import BudgetError, TraceError


def head(features):
    return nn.Linear(features, 5)


def test_sizes_in_code_are_found_group_by_group():
    def forward(net, x):
        return net.fc(net.b(net.a(x)).view(-1, 6 * 64))

    sizes, fixed = trace(forward, a=conv(3, 8), b=conv(8, 6), fc=head(384))
    assert sizes == {"a": 8}
    assert fixed["b"].startswith("cutting b fails, a size is fixed in code: ")


def test_groups_that_fail_only_together_lose_the_later_one():
    def forward(net, x):
        a, b = gap(net.a(x)), gap(net.b(x))
        assert a.shape[1] + b.shape[1] > 8  # one of 8 is left of a or of b, but not of both
        return net.fc(torch.cat([a, b], 1))

    sizes, fixed = trace(forward, a=conv(3, 8), b=conv(3, 8), fc=head(16))
    assert sizes == {"a": 8}
    assert "a size is fixed in code" in fixed["b"]


def squeezed(net, x):
    return net.fc(F.adaptive_avg_pool2d(net.b(net.a(x)), 1).squeeze())


def thresholded(net, x):
    x = net.b(net.a(x))
    return net.fc(gap(x if x.shape[1] > 2 else 2 * x))


@pytest.mark.parametrize(("forward", "least"), [(squeezed, 2), (thresholded, 4)])
def test_what_only_the_last_channels_show_keeps_a_few_of_them(forward, least):
    net = Made(forward, a=conv(3, 8), b=conv(8, 12), fc=head(12))
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert {group.name: group.least for group in graph.groups} == {"a": 1, "b": least}
    counts = keep_for_budget(graph, 0.7, scope="all", multiple=1)
    assert counts[graph.group("b")] % least == 0
    with pytest.raises(BudgetError, match="the smallest submodel"):
        keep_for_budget(graph, 0.99, scope="all", multiple=1)


def test_what_needs_more_than_half_of_few_channels_stays_full():
    sizes, fixed = trace(thresholded, a=conv(3, 8), b=conv(8, 6), fc=head(6))
    assert sizes == {"a": 8}
    assert fixed["b"].startswith("cutting b down to the last channels changes what the net")


def test_a_size_that_only_a_single_channel_meets_in_training_is_found():
    def forward(net, x):
        x = net.a(x)
        return net.fc(gap(x if not net.training else x.squeeze(1)))

    graph = ChannelGraph.trace(Made(forward, a=conv(3, 8), fc=head(8)), torch.zeros(1, 3, 8, 8))
    assert [group.least for group in graph.groups] == [2]


def test_a_count_that_only_changes_values_is_found():
    def forward(net, x):
        return net.fc(gap(net.a(x)) / net.a.weight.shape[0])

    sizes, fixed = trace(forward, a=conv(3, 8), fc=head(8))
    assert not sizes
    assert fixed == {"a": "cutting a changes what the net computes"}


@pytest.mark.parametrize("zeroed", ["a", "scale", "fc"])
def test_weights_that_start_at_zero_hide_nothing(zeroed):
    def forward(net, x):
        return net.fc(gap(net.a(x)) * net.scale / net.a.weight.shape[0])

    parts = {"a": conv(3, 8), "scale": learnt(8), "fc": head(8)}
    with torch.no_grad():
        for parameter in Made(forward, **{zeroed: parts[zeroed]}).parameters():
            parameter.zero_()
    assert not trace(forward, **parts)[0]


def test_a_size_that_only_training_meets_is_found():
    def forward(net, x):
        x = net.a(x)
        return net.fc(gap(x if not net.training else x.view(-1, 8, 64).unflatten(2, (8, 8))))

    sizes, fixed = trace(forward, a=conv(3, 8), fc=head(8))
    assert not sizes
    assert "a size is fixed in code" in fixed["a"]


def test_a_net_that_cannot_run_in_training_is_tried_in_evaluation():
    def forward(net, x):
        if net.training:
            raise ValueError("targets are missing")
        return net.fc(gap(net.a(x)))

    assert trace(forward, a=conv(3, 8), fc=head(8)) == ({"a": 8}, {})


def test_noise_of_any_kind_is_no_fault():
    def forward(net, x):
        x = F.dropout(net.a(x), 0.5)  # at all times
        if net.training:
            x = x * (torch.rand(len(x), x.shape[1], 1, 1) > 0.5)
        return net.fc(gap(x))

    assert trace(forward, a=conv(3, 8), fc=head(8)) == ({"a": 8}, {})


def test_inputs_that_allow_no_noise_are_tried_as_they_are():
    def forward(net, x):
        return net.fc(gap(net.a(torch.log(x.clamp(max=1) + 1e-9))))

    assert trace(forward, a=conv(3, 8), fc=head(8)) == ({"a": 8}, {})


def test_dropout_passes_everything():
    x = torch.ones(2, 6, 4, 4)
    with NoDropout():
        for layer in (nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.Dropout1d()):
            assert torch.equal(layer(x), x)
        assert torch.equal(F.dropout(input=x), x)
        assert torch.equal(F.relu(-x), torch.zeros_like(x))


def test_a_net_whose_copy_differs_is_refused():
    class Counting(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 5)

        def forward(self, x):
            Counting.calls += 1
            return self.fc(x) * Counting.calls

    with pytest.raises(TraceError, match="does not work like the net itself"):
        ChannelGraph.trace(Counting(), torch.ones(1, 3))


@pytest.mark.parametrize(
    ("broken", "mode", "value"),
    [
        (lambda net, y: y / 0 if net.training else y, "training", "-?inf"),
        (lambda net, y: y - y / 0 if net.training else y, "training", "-?inf"),
        (lambda net, y: y + (y - y) / 0 if net.training else y, "training", "nan"),
        (lambda net, y: y + (y - y) / 0, "evaluation", "nan"),
    ],
)
def test_a_net_whose_values_are_not_finite_is_told_so(broken, mode, value):
    def forward(net, x):
        return broken(net, net.fc(gap(net.a(x))))

    says = f"not finite in {mode}, such as {value}; .* epsilon"
    with pytest.raises(TraceError, match=says):
        trace(forward, a=conv(3, 8), fc=head(8))
    with pytest.raises(TraceError, match=says):  # nor is it the copy if nothing can be cut
        trace(lambda net, x: broken(net, net.fc(x.flatten(1))), fc=head(192))


def test_a_copy_that_differs_is_told_so_whatever_cut_nets_returned():
    class Counting(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.a, self.fc = conv(3, 8), nn.Linear(8, 5)

        def forward(self, x):
            Counting.calls += 1
            return self.fc(gap(self.a(x))) * Counting.calls

    with pytest.raises(TraceError, match="does not work like the net itself: copying it changes"):
        ChannelGraph.trace(Counting(), torch.ones(1, 3, 8, 8))


def test_a_count_on_the_instance_is_no_reason_to_refuse():
    def forward(net, x):
        net.count = getattr(net, "count", 0) + net.training
        return net.fc(gap(net.a(x))) * (1 + net.count)

    assert trace(forward, a=conv(3, 8), fc=head(8)) == ({"a": 8}, {})


def test_a_trial_keeps_an_odd_number_of_bundles_or_one_of_them():
    net = Made(lambda net, x: net.fc(gap(net.a(x))), a=conv(3, 8), fc=head(8))
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    trial = Trial(graph, net, torch.zeros(2, 3, 8, 8))
    kept = trial._some(graph.groups[0], HALF)
    assert len(kept) == 5
    assert torch.equal(kept, kept.unique())
    one = trial._some(graph.groups[0], 1)
    assert len(one) == 1
    assert one.item() in kept.tolist()  # the half that works is masked, not the whole net
    assert trial.verdict() == ({}, {graph.groups[0]: 1})


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_a_net_that_skips_blocks_by_random_numbers_of_python_or_numpy_is_cut(draw):
    def forward(net, x):
        x = net.a(x)
        for block in (net.b, net.c):
            if not net.training or draw() < 0.5:
                x = x + block(x)
        return net.fc(gap(x))

    before = random.getstate(), str(np.random.get_state())
    sizes, fixed = trace(forward, a=conv(3, 8), b=conv(8, 8), c=conv(8, 8), fc=head(8))
    assert sizes == {"a": 8}
    assert not fixed
    assert (random.getstate(), str(np.random.get_state())) == before


def test_a_net_that_runs_in_single_precision_only_is_tried_on_noise_too():
    def forward(net, x):
        x = F.relu(net.a(x.float()))
        return net.fc(gap(F.relu(net.b(x / x.shape[1]))))  # without a bias zeros would stay zeros

    layers = {"a": conv(3, 8, bias=False), "b": conv(8, 8, bias=False)}
    sizes, fixed = trace(forward, **layers, fc=nn.Linear(8, 5, bias=False))
    assert sizes == {"b": 8}
    assert fixed["a"] == "cutting a changes what the net computes"


def test_the_rounding_of_short_floats_is_no_reason_to_keep_a_group():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        short = nets.build("resnet18", num_classes=10, width=16).bfloat16()
    net = Made(lambda net, x: net.n(x.bfloat16()).float(), n=short)
    assert len(ChannelGraph.trace(net, torch.zeros(1, 3, 32, 32)).groups) == 12
