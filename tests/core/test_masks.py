"""Kept channels as text: small, and back without loss."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.masks import Mask, pack, unpack
from dapperfl.core.submodel import Submodel
from dapperfl.errors import CheckpointError

NET = nn.Sequential(nn.Linear(3, 13), nn.ReLU(), nn.Linear(13, 5), nn.ReLU(), nn.Linear(5, 2))
GRAPH = ChannelGraph.trace(NET, torch.zeros(1, 3))
WIDE, NARROW = GRAPH.groups


def test_a_mask_is_the_size_and_a_bit_for_each_kept_channel():
    submodel = Submodel(GRAPH, {WIDE: torch.tensor([0, 1, 2, 12])})
    assert pack(submodel) == {WIDE.name: "13:1007"}


def test_whole_groups_are_not_written():
    assert pack(GRAPH.full()) == {}
    assert pack(Submodel(GRAPH, {NARROW: torch.arange(5)})) == {}


@given(st.sets(st.integers(0, 12), min_size=1, max_size=12))
def test_what_is_packed_is_unpacked(channels):
    submodel = Submodel(GRAPH, {WIDE: torch.tensor(sorted(channels))})
    mask = unpack(pack(submodel)[WIDE.name])
    assert mask.channels() == sorted(channels)
    assert mask.size == 13


@given(st.sets(st.integers(0, 12)), st.integers(0, 13), st.integers(0, 13))
def test_kept_channels_are_counted_between_two(channels, low, high):
    low, high = sorted((low, high))
    mask = Mask(13, sum(1 << channel for channel in channels))
    assert mask.count(low, high) == sum(low <= channel < high for channel in channels)
    assert mask.count() == len(channels)


def test_what_two_masks_share():
    assert (Mask(4, 0b0110) & Mask(4, 0b1010)).channels() == [1]
    assert Mask.whole(3).channels() == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "12", "12:", "x:7", "12:xyz", "-4:7", "2:7"])
def test_what_is_no_mask_is_refused(text):
    with pytest.raises(CheckpointError, match=f'"{text}"'):
        unpack(text)
