"""Rules of single operations: what is cut, what stays full and why, what is refused."""

from typing import Any

import pytest
import torch
from tests.core.made import Made, assert_cut, conv, gap, learnt
from torch import nn
from torch.nn import functional as F

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.layers import RULES, refresh_sizes


def attention(net, x):
    x = net.patch(x).flatten(2).transpose(1, 2)
    b, n, c = x.shape
    q, k, v = net.qkv(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
    x = ((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).reshape(b, n, c)
    return net.fc(net.mlp(x).relu().mean(1))


def squeezed(net, x):
    x = net.c(x)
    weights = torch.sigmoid(net.e(gap(x)[:, None, :]))  # a convolution over the channels
    return net.fc(gap(x * weights.transpose(1, 2)[..., None]))


def halves(x):
    half = x.shape[1] // 2
    return x[:, :half], x[:, half:].relu()


def quarters(x):
    quarter = x.shape[1] // 4
    return x.split([quarter, x.shape[1] - quarter], 1)


def pairs(x):
    return gap(x).view(len(x), x.shape[1] // 2, 2)


def frequencies(net, x):
    x = net.c(x)
    y = torch.fft.fftshift(torch.fft.fftn(x, None, (2, 3)), dim=2).conj().resolve_conj()
    y = gap(torch.view_as_real(y)[..., 0]) + torch.fft.fft(x).abs().mean((2, 3))
    return net.fc(gap(torch.fft.irfft2(torch.fft.rfft2(x) * net.f, s=(8, 8))) + y)


CUT: dict[str, tuple[Any, dict[str, Any], dict[str, int], dict[str, str]]] = {
    "a matrix product with a parameter is a linear layer": (
        lambda net, x: net.fc(torch.relu(gap(net.c(x)) @ net.w + net.b)),
        {"c": conv(3, 8), "w": learnt(8, 6), "b": learnt(6), "fc": nn.Linear(6, 5)},
        {"c": 8, "w": 6}, {},
    ),
    "a filter of frequencies": (
        frequencies,
        {"c": conv(3, 6), "f": learnt(6, 8, 5), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "frequencies with parts in pairs of channels": (
        lambda net, x: net.fc(gap(torch.fft.ifft2(torch.view_as_complex(
            net.c(x).unflatten(1, (-1, 2)).movedim(2, -1).contiguous())).real)),
        {"c": conv(3, 12), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "frequencies of channels": (
        lambda net, x: net.fc(gap(torch.fft.fftn(net.c(x), dim=(1, 2, 3)).abs())
                              + gap(torch.fft.fft(net.c(x), dim=1).imag)),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)},
        {}, {"c": "mixed by"},
    ),
    "attention stays full, what follows does not": (
        attention,
        {"patch": nn.Conv2d(3, 8, 4, 4), "qkv": nn.Linear(8, 24), "mlp": nn.Linear(8, 6),
         "fc": nn.Linear(6, 5)},
        {"mlp": 6}, {"qkv": "mixed by", "patch": "a size is fixed in code"},
    ),
    "a convolution over the channel axis": (
        squeezed,
        {"c": conv(3, 8), "e": nn.Conv1d(1, 1, 3, padding=1), "fc": nn.Linear(8, 5)},
        {}, {"c": "mixed with another axis", "e": "spread over other channels"},
    ),
    "a permutation written down": (
        lambda net, x: net.fc(gap(net.c(x)[:, net.order])),
        {"c": conv(3, 4), "order": torch.tensor([2, 0, 3, 1]), "fc": nn.Linear(4, 5)},
        {}, {"c": "cut at a fixed position"},
    ),
    "all of a repeated tensor but its end": (  # a trial need not keep the last channel
        lambda net, x: net.fc(gap(net.c(x)).repeat(1, 2)[:, :15]),
        {"c": conv(3, 8), "fc": nn.Linear(15, 5)},
        {}, {"c": "cut at a fixed position"},
    ),
    "every second entry of a repeated tensor": (
        lambda net, x: net.fc(gap(net.c(x)).repeat_interleave(2, 1)[:, ::2]),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "a choice computed from data": (
        lambda net, x: net.fc(gap(net.c(x))[:, gap(net.c(x))[0] >= -99]),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)},
        {}, {"c": "cut at a fixed position"},
    ),
    "numbers that count channels": (
        lambda net, x: net.fc(gap(net.c(x)) + torch.arange(net.c.out_channels)),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {}, {"c": "tied to a tensor without channels"},
    ),
    "a slice that takes everything": (
        lambda net, x: net.fc(gap(torch.cat([net.c(x), net.d(net.c(x))], 1)[:, :12])),
        {"c": conv(3, 6), "d": conv(6, 6, groups=6), "fc": nn.Linear(12, 5)},
        {"c": 6}, {},
    ),
    "a fold of channels": (
        lambda net, x: net.fc(net.c(x).amax(1).flatten(1)),
        {"c": conv(3, 6), "fc": nn.Linear(64, 5)},
        {}, {"c": "folded by"},
    ),
    "channels in reverse": (
        lambda net, x: net.fc(gap(net.c(x).flip(1))),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)},
        {}, {"c": "reordered by"},
    ),
    "norms without parameters": (
        lambda net, x: net.fc(gap(net.i(net.g(net.b(net.c(x)))))),
        {"c": conv(3, 8), "b": nn.BatchNorm2d(8, affine=False, track_running_stats=False),
         "g": nn.GroupNorm(4, 8, affine=False), "i": nn.InstanceNorm2d(8), "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "a blur with a fixed filter": (
        lambda net, x: net.fc(gap(F.conv2d(net.c(x), net.blur, groups=net.blur.shape[0]))),
        {"c": conv(3, 8), "blur": torch.ones(8, 1, 3, 3) / 9, "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "a transposed convolution in groups": (
        lambda net, x: net.fc(gap(net.d(net.up(net.c(x))))),
        {"c": conv(3, 8), "up": nn.ConvTranspose2d(8, 8, 2, 2, groups=4), "d": conv(8, 6),
         "fc": nn.Linear(6, 5)},
        {"d": 6}, {"c": "filtered in groups"},
    ),
    "unequal parts": (
        lambda net, x: net.fc(torch.cat([gap(p) for p in net.c(x).split([3, 5], 1)], 1)),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {}, {"c": "cut into unequal parts"},
    ),
    "unequal parts of whole blocks": (
        lambda net, x: net.fc(torch.cat([gap(p) for p in quarters(net.c(x))], 1)),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "unequal parts of whole blocks by sizes in code": (
        lambda net, x: net.fc(torch.cat([gap(p) for p in net.c(x).split([2, 6], 1)], 1)),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {}, {"c": "a size is fixed in code"},
    ),
    "halves by slices": (
        lambda net, x: net.fc(gap(torch.cat(halves(net.c(x)), 1))),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "the last quarter": (
        lambda net, x: net.fc(gap(net.c(x)[:, -(net.c.out_channels // 4):])),
        {"c": conv(3, 8), "fc": nn.Linear(2, 5)},
        {"c": 8}, {},
    ),
    "halves by slices at a number in code": (
        lambda net, x: net.fc(gap(net.c(x)[:, :4] + net.c(x)[:, 4:])),
        {"c": conv(3, 8), "fc": nn.Linear(4, 5)},
        {}, {"c": "a size is fixed in code"},
    ),
    "a slice beyond the end": (
        lambda net, x: net.fc(torch.cat([gap(net.c(x)), gap(net.c(x)[:, 8:])], 1)),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {}, {"c": "cut at a fixed position"},
    ),
    "halves by an index": (
        lambda net, x: net.fc(gap(torch.mul(*net.c(x).unflatten(1, (2, -1)).unbind(1)))
                              + gap(net.c(x).view(len(x), 2, -1, 8, 8)[:, 1])),
        {"c": conv(3, 8), "fc": nn.Linear(4, 5)},
        {"c": 4}, {},
    ),
    "the largest of each pair": (
        lambda net, x: net.fc(gap(net.c(x).unflatten(1, (-1, 2)).amax(2))),
        {"c": conv(3, 12), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "pictures made of a vector": (
        lambda net, x: net.fc(gap(net.d(net.m(gap(net.c(x))).view(len(x), -1, 2, 2)))),
        {"c": conv(3, 8), "m": nn.Linear(8, 24), "d": conv(6, 4), "fc": nn.Linear(4, 5)},
        {"c": 8, "m": 6, "d": 4}, {},
    ),
    "parts of a size that the net holds": (
        lambda net, x: net.fc(gap(torch.cat(net.c(x).split(net.half, 1)[::-1], 1))),
        {"c": conv(3, 8), "half": 4, "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "parts of sizes that the net holds": (
        lambda net, x: net.fc(torch.cat([gap(p) for p in net.c(x).split(net.sizes, 1)], 1)),
        {"c": conv(3, 8), "sizes": [2, 6], "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "a slice up to a number that the net holds": (
        lambda net, x: net.fc(gap(net.c(x)[:, : net.half] - net.c(x)[:, net.half :])),
        {"c": conv(3, 8), "half": 4, "fc": nn.Linear(4, 5)},
        {"c": 4}, {},
    ),
    "a filter of each channel, whose number the net holds": (
        lambda net, x: net.fc(gap(F.conv2d(net.c(x), net.w, groups=net.width))),
        {"c": conv(3, 8), "w": learnt(8, 1, 3, 3), "width": 8, "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "groups of a norm, whose number the net holds": (
        lambda net, x: net.fc(gap(F.group_norm(net.c(x), net.groups))),
        {"c": conv(3, 8), "groups": 4, "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "a flattened map of a size that the net holds": (
        lambda net, x: net.fc(net.c(x).view(-1, net.flat)),
        {"c": conv(3, 6), "flat": 384, "fc": nn.Linear(384, 5)},
        {"c": 6}, {},
    ),
    "a number that the net holds for two things": (
        lambda net, x: net.fc(gap(torch.cat(net.c(x).split(net.half, 1), 1)) / net.half
                              + gap(net.c(x).unflatten(1, (2, net.half)).flatten(1, 2))),
        {"c": conv(3, 8), "half": 4, "fc": nn.Linear(8, 5)},
        {}, {"c": "a size is fixed in code"},
    ),
    "the largest of each pair by a size of the net": (
        lambda net, x: net.fc(pairs(net.c(x)).amax(2)),
        {"c": conv(3, 12), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "equal parts by their number": (
        lambda net, x: net.fc(gap(torch.mul(*torch.tensor_split(net.c(x), 2, dim=1)))),
        {"c": conv(3, 8), "fc": nn.Linear(4, 5)},
        {"c": 4}, {},
    ),
    "equal parts by a size in code": (
        lambda net, x: net.fc(gap(torch.cat(net.c(x).split(2, 1), 1).relu() * net.c(x))),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "a learnt grid of positions": (
        lambda net, x: net.fc(gap(net.c(x) * net.width + net.grid)),
        {"c": conv(3, 6), "grid": learnt(1, 6, 8, 8), "width": learnt(8), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "single numbers": (
        lambda net, x: net.fc(gap(net.c(x) * torch.tensor(0.5) + net.s) / net.c(x).mean().exp()),
        {"c": conv(3, 6), "s": learnt(), "fc": nn.Linear(6, 5)},
        {}, {"c": "folded by"},
    ),
    "noise shaped like the channels": (
        lambda net, x: net.fc(gap(net.c(x) + 0.1 * torch.randn_like(net.c(x)) + net.s * 2)),
        {"c": conv(3, 6), "s": learnt(), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "a sum of a stack": (
        lambda net, x: net.fc(gap(torch.stack([net.c(x), net.d(x)]).sum(0))),
        {"c": conv(3, 6), "d": conv(3, 6), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "a choice between branches": (
        lambda net, x: net.fc(gap((torch.stack([net.c(x), net.d(x)], 1).softmax(1)).amax(1))),
        {"c": conv(3, 6), "d": conv(3, 6), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "the larger half": (
        lambda net, x: net.fc(gap(net.c(x).unflatten(1, (2, -1)).max(1)[0])),
        {"c": conv(3, 12), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "the largest entries of each channel": (
        lambda net, x: net.fc(net.c(x).flatten(2).topk(3, -1)[0].mean(-1)
                              + net.c(x).flatten(2).sort(dim=2).values[..., -1]
                              - net.c(x).flatten(2).kthvalue(3, 2)[0]
                              + torch.cummax(net.c(x).flatten(2), 2)[0].mean(2)),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "the largest channels": (
        lambda net, x: net.fc(gap(net.c(x)).topk(3, 1)[0]),
        {"c": conv(3, 6), "fc": nn.Linear(3, 5)},
        {}, {"c": "mixed by"},
    ),
    "masks that are joined": (
        lambda net, x: net.fc(gap(net.c(x) * ((net.c(x) > 0) & (net.d(x) < 1) | net.c(x).isnan()))),
        {"c": conv(3, 6), "d": conv(3, 6), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "lengths of maps": (
        lambda net, x: net.fc(torch.linalg.norm(net.c(x).flatten(2), dim=-1).add(1).log10()),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "a sum of a stack with the picture": (
        lambda net, x: net.fc(gap(torch.stack([net.c(x), x]).sum(0))),
        {"c": conv(3, 3), "fc": nn.Linear(3, 5)},
        {}, {"c": "beside an uncut channel"},
    ),
    "constants and learnt vectors made alike": (
        lambda net, x: net.fc(gap(net.c(x - net.m.type_as(x)) * net.s.to(x))),
        {"c": conv(3, 6), "m": torch.zeros(3, 1, 1), "s": learnt(6, 1, 1),
         "fc": nn.Linear(6, 5)},
        {"c": 6}, {},
    ),
    "branches interleaved by a stack": (
        lambda net, x: net.fc(torch.stack([gap(net.c(x)), gap(net.d(x))], 2).flatten(1)),
        {"c": conv(3, 4), "d": conv(3, 4), "fc": nn.Linear(8, 5)},
        {"c": 8}, {},
    ),
    "branches joined along another axis": (
        lambda net, x: net.fc(torch.cat([net.c(x).mean(3), net.d(x).mean(3)], 2).flatten(1)),
        {"c": conv(3, 4), "d": conv(3, 4), "fc": nn.Linear(64, 5)},
        {"c": 8}, {},
    ),
    "channels stacked beside numbers of no channel": (
        lambda net, x: net.fc(torch.stack([gap(net.c(x)), x.new_ones(len(x), 4)], 2).flatten(1)),
        {"c": conv(3, 4), "fc": nn.Linear(8, 5)},
        {}, {"c": "beside an uncut channel"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CUT)
def test_a_rule_cuts_what_it_can_and_says_what_it_cannot(case):
    assert_cut(*CUT[case])


@pytest.mark.parametrize(
    "name",
    [name for name in dir(F) if name.endswith(("relu", "elu", "pool2d", "_norm", "sigmoid"))],
)
def test_torchs_activations_pools_and_norms_have_rules(name):
    without = {"fractional_max_pool2d", "max_unpool2d"}  # drawn at random; needs a pool's indices
    assert (name.strip("_") in RULES) is (name.strip("_") not in without)


def test_a_layers_sizes_follow_its_weight():
    up = nn.ConvTranspose2d(8, 6, 2)
    up.weight = nn.Parameter(up.weight[:3, :2].detach())
    refresh_sizes(up)
    assert (up.in_channels, up.out_channels) == (3, 2)
    depthwise = nn.Conv2d(8, 16, 3, groups=8)
    depthwise.weight, depthwise.groups = nn.Parameter(depthwise.weight[:6].detach()), 3
    refresh_sizes(depthwise)
    assert (depthwise.in_channels, depthwise.out_channels) == (3, 6)
    table = nn.Embedding(9, 8)
    table.weight = nn.Parameter(table.weight[:, :5].detach())
    refresh_sizes(table)
    assert table.embedding_dim == 5


def test_affineless_norms_say_their_sizes_after_a_cut():
    parts = {
        "c": conv(3, 8), "g": nn.GroupNorm(4, 8, affine=False), "i": nn.InstanceNorm2d(8),
        "fc": nn.Linear(8, 5),
    }  # fmt: skip
    net = Made(lambda net, x: net.fc(gap(net.i(net.g(net.c(x))))), **parts)
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    small = graph.full().from_lists(graph, {"c": [2, 3]}).shrink(net)
    sizes = (small.g.num_groups, small.g.num_channels, small.i.num_features)  # type: ignore[union-attr]
    assert sizes == (1, 2, 2)


def test_numbers_that_a_net_holds_follow_its_channels():
    def forward(net, x):
        return net.fc(torch.cat([gap(part) for part in net.c(x).split(net.sizes, 1)], 1))

    net = Made(forward, c=conv(3, 8), sizes=(2, 6), other=3, fc=nn.Linear(8, 5))
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))
    small = graph.full().from_lists(graph, {"c": [0, 2, 4, 6]}).shrink(net)
    assert (vars(small)["sizes"], vars(small)["other"]) == ((1, 3), 3)
    assert vars(net)["sizes"] == (2, 6)
