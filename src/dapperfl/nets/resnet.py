"""Residual nets for small images: the backbone of the paper's experiments, at any width.

CIFAR stem (3×3, stride 1, no max-pool), post-activation basic blocks, four stages of width
w, 2w, 4w, 8w and stride 1, 2, 2, 2, global average pool, one linear layer. The number in a name
counts the layers on the main path: the stem, two per block, the head.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["resnet10", "resnet12", "resnet18", "resnet34"]


def _conv_norm(in_channels: int, channels: int, *, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels),
    )


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around which the input is added, projected where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = _conv_norm(in_channels, channels, kernel=3, stride=stride)
        self.second = _conv_norm(channels, channels, kernel=3, stride=1)
        same_shape = stride == 1 and in_channels == channels
        self.shortcut = (
            nn.Sequential()
            if same_shape
            else _conv_norm(in_channels, channels, kernel=1, stride=stride)
        )
        self.step: nn.Parameter | None
        self.register_parameter("step", None)  # room for methods that scale the branch

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, after its last ReLU."""
        out = self.second(F.relu(self.first(x)))
        out = out if self.step is None else out * self.step
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    """A residual net whose last linear layer reads the pooled, non-negative features z."""

    def __init__(
        self, blocks: Sequence[int], *, num_classes: int, in_channels: int, width: int
    ) -> None:
        super().__init__()
        self.stem = _conv_norm(in_channels, width, kernel=3, stride=1)
        stages, previous = [], width
        for stage, depth in enumerate(blocks):
            channels = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            layers = []
            for stride in strides:
                layers.append(BasicBlock(previous, channels, stride))
                previous = channels
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(previous, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out = self.stages(F.relu(self.stem(x)))
        z = self.pool(out).flatten(1)  # (batch, 8 × width)
        logits: Tensor = self.head(z)
        return logits


def resnet10(num_classes: int, in_channels: int = 3, width: int = 64) -> ResNet:
    """Build the paper's net for Digits: one block a stage."""
    return ResNet([1, 1, 1, 1], num_classes=num_classes, in_channels=in_channels, width=width)


def resnet12(num_classes: int, in_channels: int = 3, width: int = 64) -> ResNet:
    """Build a ResNet10 with a second block in its first stage.

    Not the few-shot ResNet12 with three convolutions a block: this one is a basic-block net of
    twelve layers, and the first stage is where a block costs the fewest parameters.
    """
    return ResNet([2, 1, 1, 1], num_classes=num_classes, in_channels=in_channels, width=width)


def resnet18(num_classes: int, in_channels: int = 3, width: int = 64) -> ResNet:
    """Build the paper's net for Office-Caltech: two blocks a stage."""
    return ResNet([2, 2, 2, 2], num_classes=num_classes, in_channels=in_channels, width=width)


def resnet34(num_classes: int, in_channels: int = 3, width: int = 64) -> ResNet:
    """Build the deepest basic-block net of the family."""
    return ResNet([3, 4, 6, 3], num_classes=num_classes, in_channels=in_channels, width=width)
