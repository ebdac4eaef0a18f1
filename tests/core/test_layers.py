"""Rules of single operations: what is cut, what stays full and why, what is refused."""

from typing import Any

import pytest
import torch
from tests.core.made import Made, conv, gap, learnt, trace
from torch import nn
from torch.nn import functional as F

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.layers import RULES, refresh_sizes
from dapperfl.errors import TraceError


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


CUT: dict[str, tuple[Any, dict[str, Any], dict[str, int], dict[str, str]]] = {
    "a transposed parameter is no layer": (
        lambda net, x: net.fc(net.m(gap(net.c(x))) @ net.w.t()),
        {"c": conv(3, 8), "m": nn.Linear(8, 7), "w": learnt(6, 7), "fc": nn.Linear(6, 5)},
        {"c": 8}, {"m": "mixed by"},
    ),
    "a matrix product with a parameter is a linear layer": (
        lambda net, x: net.fc(torch.relu(gap(net.c(x)) @ net.w + net.b)),
        {"c": conv(3, 8), "w": learnt(8, 6), "b": learnt(6), "fc": nn.Linear(6, 5)},
        {"c": 8, "w": 6}, {},
    ),
    "attention stays full, what follows does not": (
        attention,
        {"patch": nn.Conv2d(3, 8, 4, 4), "qkv": nn.Linear(8, 24), "mlp": nn.Linear(8, 6),
         "fc": nn.Linear(6, 5)},
        {"mlp": 6}, {"qkv": "split into several axes", "patch": "a size is fixed in code"},
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
        lambda net, x: net.fc(torch.cat([gap(p) for p in net.c(x).split([2, 6], 1)], 1)),
        {"c": conv(3, 8), "fc": nn.Linear(8, 5)},
        {}, {"c": "cut into unequal parts"},
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


def assert_cut(forward, parts, sizes, reasons):
    """Trace a net, and compare what may be cut, and why the rest stays."""
    found, fixed = trace(forward, **parts)
    assert found == sizes
    assert fixed.keys() == reasons.keys()
    assert all(words in fixed[name] for name, words in reasons.items()), fixed


@pytest.mark.parametrize("case", CUT)
def test_a_rule_cuts_what_it_can_and_says_what_it_cannot(case):
    assert_cut(*CUT[case])


def add_into(net, x):
    room = torch.zeros(len(x), 10, 8, 8)
    room[:, :6].add_(net.c(x))
    return net.fc(gap(net.d(room)))


def write_into(net, x):
    room = torch.zeros(len(x), 10, 8, 8)
    room[:, :6] = net.c(x)
    room[:, 6:8].copy_(net.d(net.e(x)))
    room[:, 8:].add_(net.d(net.e(x)))
    return net.fc(gap(room))


def overwrite(net, x):
    x = net.e(x)
    y = net.c(x).clone()
    y[0] = net.d(x)[1]
    return net.fc(gap(y))


def lookup_by_distance(net, x):
    x = net.a(gap(net.c(x))).relu()
    return net.fc(torch.cdist(x, net.b.weight)) + net.d(net.b(x))


UNRULED: dict[str, tuple[Any, dict[str, Any], dict[str, int], dict[str, str]]] = {
    "an unknown function": (
        lambda net, x: net.fc(gap(torch.fft.fft2(net.c(net.e(x))).real)),
        {"e": conv(3, 8), "c": conv(8, 6), "fc": nn.Linear(6, 5)},
        {"e": 8},
        dict.fromkeys(["c", "fft_fft2"], 'no channel rule for "fft_fft2" in the top')
        | {"real": 'no channel rule for "real"'},
    ),
    "a recurrent layer": (
        lambda net, x: net.fc(net.rnn(x.flatten(2))[0][:, -1]),
        {"rnn": nn.LSTM(64, 8, batch_first=True), "fc": nn.Linear(8, 5)},
        {}, {"rnn.lstm": 'no channel rule for "lstm" in rnn (LSTM)'},
    ),
    "a whole attention layer": (
        lambda net, x: net.fc(net.heads(*[net.c(x).flatten(2)] * 3)[0].mean(1)),
        {"c": conv(3, 6), "heads": nn.MultiheadAttention(64, 2, batch_first=True),
         "fc": nn.Linear(64, 5)},
        {}, dict.fromkeys(["c", "heads.multi_head_attention_forward"], "in heads (Multi"),
    ),
    "room that is written into": (
        write_into,
        {"c": conv(3, 6), "e": conv(3, 8), "d": conv(8, 2), "fc": nn.Linear(10, 5)},
        {"e": 8}, {"__setitem__": "no channel rule", "c": '"__setitem__"',
                   "copy": "no channel rule", "d": '"copy"'},
    ),
    "room that is added to": (
        add_into, {"c": conv(3, 6), "d": conv(10, 8), "fc": nn.Linear(8, 5)},
        {"d": 8}, {"c": "tied to a tensor without channels"},
    ),
    "an activation that is written into": (
        overwrite,
        {"e": conv(3, 8), "c": conv(8, 6), "d": conv(8, 6), "fc": nn.Linear(6, 5)},
        {"e": 8}, dict.fromkeys(["c", "d", "__setitem__"], '"__setitem__"'),
    ),
    "a weight norm": (
        lambda net, x: net.fc(gap(net.c(net.e(x)))),
        {"e": conv(3, 8), "c": nn.utils.parametrizations.weight_norm(conv(8, 6)),
         "fc": nn.Linear(6, 5)},
        {}, dict.fromkeys(["e", "c.conv2d"], 'the weight of "conv2d" in c'),
    ),
    "a standardised weight": (
        lambda net, x: net.fc(gap(F.conv2d(x, net.w - net.w.mean()))),
        {"w": learnt(6, 3, 3, 3), "fc": nn.Linear(6, 5)},
        {}, {"conv2d": "is computed"},
    ),
    "a weight made by another net": (
        lambda net, x: net.fc(F.linear(gap(net.c(x)), net.h(gap(x)).mean(0).view(6, 8))),
        {"c": conv(3, 8), "h": nn.Linear(3, 48), "fc": nn.Linear(6, 5)},
        {}, {"c": "is computed", "linear": "is computed", "h": "is computed"},
    ),
    "a rule that does not fit": (
        lambda net, x: net.fc(gap(F.normalize(net.c(net.e(x)), dim=(2, 3)))),  # type: ignore[arg-type]
        {"e": conv(3, 8), "c": conv(8, 6), "fc": nn.Linear(6, 5)},
        {"e": 8}, dict.fromkeys(["c", "normalize"], 'rule for "normalize" in the top'),
    ),
    "a weight that is used with a rule and without one": (
        lookup_by_distance,
        {"c": conv(3, 7), "a": nn.Linear(7, 6), "b": nn.Linear(6, 8), "d": nn.Linear(8, 5),
         "fc": nn.Linear(8, 5)},
        {"c": 7}, dict.fromkeys(["a", "b", "cdist"], '"cdist"'),
    ),
    "a weight that another one is computed from": (
        lambda net, x: net.fc(F.linear(net.b(net.a(gap(net.c(x)))), 2 * net.b.weight.t())),
        {"c": conv(3, 7), "a": nn.Linear(7, 6), "b": nn.Linear(6, 8), "fc": nn.Linear(6, 5)},
        {"c": 7}, dict.fromkeys(["a", "b", "linear"], "is computed"),
    ),
    "a matrix that is read in another way elsewhere": (
        lambda net, x: net.fc(net.b(net.a(gap(net.c(x)))) @ net.b.weight),
        {"c": conv(3, 7), "a": nn.Linear(7, 6), "b": nn.Linear(6, 8), "fc": nn.Linear(6, 5)},
        {"c": 7, "a": 6, "b": 8}, {},
    ),
    "a vector that is used with a rule and sorted without one": (
        lambda net, x: net.fc(net.n(net.c(x)).mean((2, 3)) + net.n.weight.sort()[0].sum()),
        {"c": conv(3, 8), "n": nn.BatchNorm2d(8), "fc": nn.Linear(8, 5)},
        {}, {"c": "a tensor computed from it"},
    ),
    "a learnt vector picked by a mask": (
        lambda net, x: net.fc(gap(net.c(x)) * net.s[torch.ones(8, dtype=torch.bool)]),
        {"c": conv(3, 8), "s": learnt(8), "fc": nn.Linear(8, 5)},
        {}, {"c": "tied to a tensor without channels"},
    ),
    "a mask turned round": (
        lambda net, x: net.fc(gap(net.c(x) * ~(net.c(x) > 0))),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)}, {"c": 6}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNRULED)
def test_all_that_a_call_without_a_rule_reads_stays_as_it_is(case):
    assert_cut(*UNRULED[case])


def test_what_stays_uncut_is_said_once(caplog):
    def forward(net, x):
        x = torch.fft.fft2(net.c(x)).abs()
        return net.fc(gap(torch.fft.fft2(torch.fft.ifft2(torch.fft.fft2(x))).abs()))

    trace(forward, c=conv(3, 6), fc=nn.Linear(6, 5))
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith('part of the net stays uncut: no channel rule for "fft_fft2" in the top')
    caplog.clear()
    trace(lambda net, x: net.fc(gap(net.c(x))), c=conv(3, 6), fc=nn.Linear(6, 5))
    assert not caplog.records


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a path that depends on data": (
        lambda net, x: net.fc(gap(net.c(x) if x.sum() > 0 else -net.c(x))),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)}, '"__bool__".*torch.where',
    ),
    "values that leave torch": (
        lambda net, x: net.fc(torch.tensor(gap(net.c(x)).tolist())),
        {"c": conv(3, 6), "fc": nn.Linear(6, 5)}, '"tolist"',
    ),
    "values that leave torch behind a call without a rule": (
        lambda net, x: net.fc(gap(x) * torch.fft.fft2(x).abs().sum().item()),
        {"fc": nn.Linear(3, 5)}, '"item"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_leave_torch_are_refused_by_name(case):
    forward, parts, words = REFUSED[case]
    with pytest.raises(TraceError, match=words):
        trace(forward, **parts)


def test_questions_about_shapes_and_types_are_no_data():
    def forward(net, x):
        x = net.c(x)
        assert x.is_floating_point()
        assert x.ndim == x.dim() == len(x.shape) == 4
        assert len(x) == x.size(0)
        assert x.dtype == net.c.weight.dtype
        return net.fc(gap(x) if x.numel() and x.device == net.c.weight.device else gap(-x))

    assert trace(forward, c=conv(3, 6), fc=nn.Linear(6, 5)) == ({"c": 6}, {})


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
