"""Calls at which a net is watched: no rule, one that does not fit, values that leave torch."""

from typing import Any

import pytest
import torch
from tests.core.made import assert_cut, conv, gap, learnt, trace
from torch import nn
from torch.nn import functional as F

from dapperfl.errors import TraceError


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
        lambda net, x: net.fc(gap(torch.linalg.pinv(net.c(net.e(x))))),
        {"e": conv(3, 8), "c": conv(8, 6), "fc": nn.Linear(6, 5)},
        {"e": 8},
        dict.fromkeys(["c", "linalg_pinv"], 'no channel rule for "linalg_pinv" in the top'),
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
        lambda net, x: net.fc(F.linear(net.b(net.a(gap(net.c(x)))), F.normalize(net.b.weight.t()))),
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
        x = torch.linalg.pinv(net.c(x))
        return net.fc(gap(torch.linalg.pinv(torch.linalg.pinv(x))))

    trace(forward, c=conv(3, 6), fc=nn.Linear(6, 5))
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        'part of the net stays uncut: no channel rule for "linalg_pinv" in the top'
    )
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
