"""Torch-Pruning, which finds couplings in another way, agrees with the channel graph."""

import pytest
import torch
import torch_pruning as tp
from tests.core import zoo, zoo_odd
from torch import nn

from dapperfl.core.channels import ChannelGraph

CROSS_CHECKED = [
    zoo.ResNet, zoo.BottleneckResNet, zoo.PreActResNet, zoo.MobileNetV2, zoo.MobileNetV3,
    zoo.EfficientNet, zoo.SeResNet, zoo_odd.DenseNet, zoo_odd.Inception, zoo.Vgg,
]  # fmt: skip


@pytest.mark.parametrize("cls", CROSS_CHECKED)
def test_torch_pruning_couples_the_same_layers(cls):
    net = cls().eval()
    graph = ChannelGraph.trace(net, net.example())
    ours = set()
    for group in graph.groups:
        channels = torch.arange(group.offset, group.offset + group.size)
        written = frozenset(
            name.removesuffix(".weight")
            for name, axis in graph.writers
            if (ids := graph.axes[name][axis]) is not None and bool(torch.isin(ids, channels).any())
        )
        ours.add((written, group.size))
    dependencies = tp.DependencyGraph().build_dependency(net, example_inputs=net.example())
    names = {module: name for name, module in net.named_modules()}
    outwards = {
        tp.prune_conv_out_channels, tp.prune_linear_out_channels,
        tp.prune_depthwise_conv_out_channels,
    }  # fmt: skip
    theirs = set()
    for found in dependencies.get_all_groups(root_module_types=[nn.Conv2d, nn.Linear]):
        layers = frozenset(names[dep.target.module] for dep, _ in found if dep.handler in outwards)
        if graph.head not in layers:
            theirs.add((layers, len(found[0].idxs)))
    assert ours == theirs
