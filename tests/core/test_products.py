"""Products of activations: forward, and one product backward for each gradient that is wanted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.core.counting import work_of
from tests.core.made import Made, learnt
from tests.core.zoo_pinned import Recurrent
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.core.tracing import Product


def products(multiply: Callable[[Any, torch.Tensor], torch.Tensor]) -> list[Product]:
    """Return the products of a net that multiplies something with 4 tokens of 6 features."""
    net = Made(
        lambda net, x: net.fc(multiply(net, net.embed(x.flatten(2)[:, :, :4])).flatten(1)[:, :3]),
        embed=nn.Linear(4, 6), w=learnt(5, 6), fc=nn.Linear(3, 2),
    )  # fmt: skip
    return list(ChannelGraph.trace(net, torch.zeros(1, 4, 2, 2)).products)


TWICE = 4 * 4 * 6  # MACs of tokens times tokens
CASES: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], int, int]] = {
    "both sides want a gradient": (lambda _, z: z @ z.mT, TWICE, 3),
    "one side wants none": (lambda _, z: torch.matmul(z, z.mT.detach()), TWICE, 2),
    "a constant": (lambda _, z: torch.bmm(torch.ones(len(z), 4, 4), z), TWICE, 2),
    "a computed matrix turned round": (lambda net, z: z @ net.w.softmax(0).t(), 4 * 6 * 5, 3),
    "a learnt matrix on the left": (lambda net, z: net.w @ z.mT, 4 * 6 * 5, 3),
    "in Einstein's notation": (lambda _, z: torch.einsum("bic,bjc->bij", z, z), TWICE, 3),
    "three factors": (
        lambda net, z: torch.einsum("bic,bjc,kj->bik", z, z, net.w[:, :4]), TWICE + 4 * 4 * 5, 3
    ),
    "in place": (lambda _, z: torch.zeros(len(z), 4, 4).baddbmm_(z, z.mT), TWICE, 3),
    "by keyword": (
        lambda _, z: F.scaled_dot_product_attention(query=z, key=z, value=z), 2 * TWICE, 3
    ),
    "where nothing is learnt": (lambda _, z: torch.no_grad()(torch.matmul)(z, z.mT), TWICE, 1),
    "a computed filter for each channel": (
        lambda net, z: F.conv1d(z, 2 * net.w[:4, None, :3], groups=4), 4 * 3 * 4, 3
    ),
    "of the whole batch": (lambda _, z: torch.tensordot(z, z[0].detach(), ([2], [1])), TWICE, 2),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_product_is_counted_however_it_is_written(case):
    multiply, macs, passes = CASES[case]
    assert products(multiply) == [Product(macs, 2 * macs * passes)]


def test_mixing_without_multiplications_is_no_product():
    assert products(lambda _, z: z.sort(dim=1)[0]) == []


def test_parts_that_run_only_in_training_are_not_counted():
    def multiply(net, z):
        return z @ z.mT + (torch.zeros(1) if not net.training else (z @ net.w.t())[:, :, :4])

    assert len(products(multiply)) == 1


def test_recurrent_layers_are_counted_though_torch_fuses_them():
    net = Recurrent()
    lstm, gru = 4 * 6 * (32 + 6), 2 * 3 * 6 * (6 + 6)
    found = ChannelGraph.trace(net, net.example()).products
    assert [product.macs for product in found] == [8 * lstm, 8 * gru]  # for each of eight columns


class Asking(nn.Module):
    """Learnt queries that every sample gets, and a first state of zeros."""

    def __init__(self):
        super().__init__()
        self.embed, self.ask, self.norm = nn.Linear(3, 6), nn.Linear(6, 6), nn.LayerNorm(6)
        self.queries, self.back, self.fc = learnt(4, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        tokens = self.embed(x.flatten(2).mT)
        asked = self.ask(self.norm(self.queries.expand(len(x), -1, -1)))
        z = nn.functional.scaled_dot_product_attention(asked, tokens, tokens).mean(1)
        state = torch.zeros(len(x), self.back.in_features, dtype=x.dtype)
        for _ in range(2):
            state = torch.tanh(z + self.back(state))
        return self.fc(state)


def test_work_for_each_sample_is_counted_where_no_activation_takes_part():
    net = Asking()
    price = cost(ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8)).full())
    assert (price.macs, price.train_flops) == work_of(net, torch.rand(2, 3, 8, 8))


def test_a_weight_that_is_made_once_a_batch_is_not_counted():
    def multiply(net, z):
        return F.linear(z, net.w @ net.w.mT @ net.w)

    assert products(multiply) == [Product(4 * 6 * 5, 3 * 2 * 4 * 6 * 5)]


class Checkpointed(nn.Module):
    """Attention and a convolution behind a checkpoint, as large nets have them."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(3, 8, 2, 2)
        self.qkv = nn.Linear(8, 24)
        self.fc = nn.Linear(8, 5)

    def mix(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 8)).unbind(2)
        return x + nn.functional.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        z = self.conv(x).flatten(2).transpose(1, 2)
        z = self.mix(z) if self.how is None else checkpoint(self.mix, z, use_reentrant=self.how)
        return self.fc(z.mean(1))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch, of a trial
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_holds_is_counted_as_if_it_were_not_there(reentrant):
    example = torch.zeros(1, 3, 8, 8)
    plain, held = (ChannelGraph.trace(Checkpointed(how), example) for how in (None, reentrant))
    assert cost(held.full()) == cost(plain.full())
    assert held.fixed.keys() == plain.fixed.keys()
    assert cost(plain.full()).macs > 16 * 16 * 8  # the products of attention are among them
