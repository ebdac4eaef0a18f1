import pytest
import torch

from dapperfl.nets.convnet import convnet


def test_parameters_are_those_of_two_convolutions_and_two_linear_layers():
    net = convnet(10, width=4)
    convs = (3 * 9 + 1) * 4 + (4 * 9 + 1) * 8
    linears = (8 * 4 * 4 + 1) * 16 + (16 + 1) * 10
    assert sum(p.numel() for p in net.parameters()) == convs + linears


@pytest.mark.parametrize("side", [8, 28, 32, 33])
def test_any_image_of_8_pixels_and_more_works(side):
    assert convnet(7, in_channels=1, width=4)(torch.rand(2, 1, side, side)).shape == (2, 7)
