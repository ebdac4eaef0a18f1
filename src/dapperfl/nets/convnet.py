"""The smallest useful net: two convolutions and two linear layers, without any norm."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["convnet"]

_GRID = 4  # side of the map that is flattened, whatever the image size


class Grid(nn.Module):
    """Pool a map of any size to a grid of means, as nn.AdaptiveAvgPool2d does.

    On a GPU that layer adds its gradients in any order, so that runs do not repeat themselves.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the means, (batch, channels, _GRID, _GRID)."""
        sides = x.shape[-2:]
        if not any(side % _GRID for side in sides):
            return F.avg_pool2d(x, [side // _GRID for side in sides])
        if not any(_GRID % side for side in sides):
            return F.interpolate(x, size=(_GRID, _GRID), mode="nearest")
        return _means(_means(x, -2), -1)


def _means(x: Tensor, axis: int) -> Tensor:
    """Return the means along an axis of windows that cover it evenly and may overlap."""
    side = x.shape[axis]
    ends = [(i * side // _GRID, -(-(i + 1) * side // _GRID)) for i in range(_GRID)]
    return torch.stack([x.narrow(axis, a, b - a).mean(axis) for a, b in ends], axis)


class ConvNet(nn.Module):
    """A plain CNN that flattens its feature map, for images of 8 pixels a side and more."""

    def __init__(self, *, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            Grid(),
            nn.Flatten(),
            nn.Linear(2 * width * _GRID**2, 4 * width),
            nn.ReLU(),
        )
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.encoder(x))
        return logits


def convnet(num_classes: int, in_channels: int = 3, width: int = 32) -> ConvNet:
    """Build a two-convolution net; width is the channels of the first convolution."""
    return ConvNet(num_classes=num_classes, in_channels=in_channels, width=width)
