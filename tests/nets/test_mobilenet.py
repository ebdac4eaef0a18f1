from typing import Any

import torch
from torch import nn

from dapperfl.nets.mobilenet import InvertedResidual, mobilenetv2


def test_the_default_width_gives_the_stage_table_of_mobilenetv2():
    net: Any = mobilenetv2(10)
    channels = [block.body[-1].num_features for block in net.blocks]
    assert channels == [16] + [24] * 2 + [32] * 3 + [64] * 4 + [96] * 3 + [160] * 3 + [320]
    assert net.head.in_features == 1280


def test_every_block_filters_each_channel_by_itself():
    net = mobilenetv2(10, width=8)
    spatial = [m for m in net.blocks.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1]
    assert len(spatial) == 17
    assert all(conv.groups == conv.in_channels == conv.out_channels for conv in spatial)


def test_a_32_pixel_image_reaches_the_pool_as_a_4_pixel_map():
    net = mobilenetv2(10, width=8)
    assert net.blocks(net.stem(torch.rand(1, 3, 32, 32))).shape[2:] == (4, 4)


def test_a_block_that_keeps_its_shape_adds_its_input():
    block: Any = InvertedResidual(8, 8, expansion=2, stride=1).eval()
    nn.init.zeros_(block.body[-1].weight)  # the last norm: the body now returns zero
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(block(x), x)


def test_a_block_that_changes_its_shape_adds_nothing():
    block: Any = InvertedResidual(8, 16, expansion=2, stride=2).eval()
    nn.init.zeros_(block.body[-1].weight)
    assert torch.equal(block(torch.randn(2, 8, 6, 6)), torch.zeros(2, 16, 3, 3))
