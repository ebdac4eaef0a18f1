import pytest
import torch

from dapperfl.nets.resnet import BasicBlock, resnet10, resnet12, resnet18, resnet34


def _parameters(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("factory", "parameters"), [(resnet10, 4_903_242), (resnet18, 11_173_962)])
def test_dense_nets_have_the_parameters_of_the_papers_footprint_tables(factory, parameters):
    assert _parameters(factory(10)) == parameters


@pytest.mark.parametrize(
    ("factory", "layers"), [(resnet10, 10), (resnet12, 12), (resnet18, 18), (resnet34, 34)]
)
def test_the_number_in_a_name_counts_the_layers_of_the_main_path(factory, layers):
    net = factory(10, width=4)
    blocks = sum(isinstance(module, BasicBlock) for module in net.modules())
    assert 1 + 2 * blocks + 1 == layers


def test_a_32_pixel_image_reaches_the_pool_as_a_4_pixel_map():
    net = resnet10(10, width=4)
    assert net.stages(net.stem(torch.rand(1, 3, 32, 32))).shape == (1, 32, 4, 4)


def test_features_before_the_head_are_never_negative():
    net = resnet10(10, width=4)
    seen = []
    net.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(torch.randn(4, 3, 16, 16))
    assert seen[0].shape == (4, 32)
    assert (seen[0] >= 0).all()


def test_only_blocks_that_change_the_shape_project_their_input():
    net = resnet18(10, width=4)
    blocks = [module for module in net.modules() if isinstance(module, BasicBlock)]
    projected = [len(block.shortcut) > 0 for block in blocks]
    assert projected == [False, False, True, False, True, False, True, False]
