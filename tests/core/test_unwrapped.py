"""Functions that torch hides from a watcher are seen through, or refused."""

import warnings

import pytest
import torch
from tests.core.counting import work_of
from tests.core.made import Made, conv, gap
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.errors import TraceError


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def hidden(how):
    """Compile a function in one of torch's older ways, which it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if how == "script":
            return torch.jit.script(swish)
        if how == "trace":
            return torch.jit.trace(swish, torch.ones(2, 8, 8, 8))
        return torch.jit.CompilationUnit("def swish(x): return x * torch.sigmoid(x)\n").swish


def residual(net, x):
    x = net.a(x)
    return net.fc(gap(x + net.c(net.act(net.b(x)))))


def parts():
    return {"a": conv(3, 8), "b": conv(8, 12), "c": conv(12, 8), "fc": nn.Linear(8, 5)}


@pytest.mark.parametrize("how", ["script", "trace"])
def test_scripted_functions_are_seen_through(how):
    net = Made(residual, **parts())
    net.act = hidden(how)
    usual = torch.jit.ScriptFunction.__call__
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert torch.jit.ScriptFunction.__call__ is usual
    assert {group.name: group.size for group in graph.groups} == {"a": 8, "b": 12}
    price = cost(graph.full())
    assert (price.macs, price.train_flops) == work_of(net, torch.rand(2, 3, 8, 8))


@pytest.mark.parametrize("act", [hidden("loaded"), torch.vmap(swish)])
def test_work_behind_calls_that_cannot_be_seen_is_not_left_uncounted(act):
    net = Made(residual, **parts())
    net.act = act
    with pytest.raises(TraceError, match=r'"conv2d" in c \(Conv2d\) reads what a call that cannot'):
        ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))


class Doubled(torch.autograd.Function):
    """Writes its result into its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_a_function_of_ones_own_that_writes_in_place_keeps_no_channels():
    def forward(net, x):
        return net.fc(gap(net.b(Doubled.apply(net.a(x)))))

    net = Made(forward, a=conv(3, 8), b=conv(8, 12), fc=nn.Linear(12, 5))
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    assert [group.name for group in graph.groups] == ["a", "b"]
