"""The smallest useful net: two convolutions and two linear layers, without any norm."""

from torch import Tensor, nn

__all__ = ["convnet"]

_GRID = 4  # side of the map that is flattened, whatever the image size


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
            nn.AdaptiveAvgPool2d(_GRID),
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
