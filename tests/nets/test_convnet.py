import pytest
import torch

from dapperfl.core.channels import ChannelGraph
from dapperfl.nets.convnet import Grid, convnet


def test_parameters_are_those_of_two_convolutions_and_two_linear_layers():
    net = convnet(10, width=4)
    convs = (3 * 9 + 1) * 4 + (4 * 9 + 1) * 8
    linears = (8 * 4 * 4 + 1) * 16 + (16 + 1) * 10
    assert sum(p.numel() for p in net.parameters()) == convs + linears


@pytest.mark.parametrize("side", [8, 28, 32, 33])
def test_any_image_of_8_pixels_and_more_works(side):
    assert convnet(7, in_channels=1, width=4)(torch.rand(2, 1, side, side)).shape == (2, 7)


@pytest.mark.parametrize("sides", [(1, 1), (2, 4), (4, 4), (8, 16), (3, 5), (7, 7), (8, 7), (9, 2)])
def test_means_and_their_gradients_are_those_of_torchs_layer(sides):
    x = torch.randn(2, 3, *sides, dtype=torch.float64, requires_grad=True)
    ours, theirs = Grid()(x), torch.nn.AdaptiveAvgPool2d(4)(x)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    gradients = [torch.autograd.grad(each, x, upstream)[0] for each in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("side", [8, 28, 32])
def test_it_is_cut_on_pictures_of_any_size(side):
    graph = ChannelGraph.trace(convnet(10, width=8), torch.zeros(1, 3, side, side))
    assert [group.size for group in graph.groups] == [8, 16, 32]
    assert list(graph.fixed) == ["head"]
