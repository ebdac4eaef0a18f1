"""Weights computed entry by entry are cut like the parameters behind them, all others are not."""

from typing import Any

import pytest
from tests.core.made import assert_cut, conv, gap, learnt
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

CASES: dict[str, tuple[Any, dict[str, Any], dict[str, int], dict[str, str]]] = {
    "a matrix product with a transposed parameter is a linear layer": (
        lambda net, x: net.fc(net.m(gap(net.c(x))) @ net.w.t()),
        {"c": conv(3, 8), "m": nn.Linear(8, 7), "w": learnt(6, 7), "fc": nn.Linear(6, 5)},
        {"c": 8, "m": 7, "w": 6}, {},
    ),
    "weights computed entry by entry": (
        lambda net, x: net.fc(gap(F.conv2d(net.c(x), net.s * net.w.sign() / net.w.abs().max()))),
        {"c": conv(3, 8), "w": learnt(6, 8, 3, 3), "s": learnt(6, 1, 1, 1), "fc": nn.Linear(6, 5)},
        {"c": 8, "w": 6}, {},
    ),
    "weights computed so that zero is not zero": (
        lambda net, x: net.fc(gap(F.conv2d(net.c(x).sigmoid(), F.softplus(net.w)))),
        {"c": conv(3, 8), "w": learnt(6, 8, 3, 3), "fc": nn.Linear(6, 5)},
        {"w": 6}, {"c": "changes what the net computes"},
    ),
    "one of several weights": (
        lambda net, x: net.fc(gap(F.conv2d(net.c(x), net.w[1]))),
        {"c": conv(3, 8), "w": learnt(2, 6, 8, 3, 3), "fc": nn.Linear(6, 5)},
        {}, {"conv2d": "is computed", "c": "is computed"},
    ),
    "a weight that is written into": (
        lambda net, x: net.fc(gap(F.conv2d(net.c(x), net.w.clone().copy_(net.w.flip(0))))),
        {"c": conv(3, 8), "w": learnt(6, 8, 3, 3), "fc": nn.Linear(6, 5)},
        {}, {"conv2d": "is computed", "c": "is computed"},
    ),
    "a pruned layer": (
        lambda net, x: net.fc(gap(net.c(x))),
        {"c": prune.random_unstructured(conv(3, 8), "weight", 0.3), "fc": nn.Linear(8, 5)},
        {"c.weight_orig": 8}, {},
    ),
    "a matrix there and back": (
        lambda net, x: net.fc(gap(net.c(x)) @ net.w.t() @ net.w),
        {"c": conv(3, 8), "w": learnt(6, 8), "fc": nn.Linear(8, 5)},
        {"c": 8, "w": 6}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_computed_entry_by_entry_is_cut(case):
    assert_cut(*CASES[case])
