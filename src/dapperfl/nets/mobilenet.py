"""Inverted residuals with depthwise convolutions, for devices that count every multiplication.

The stage table is MobileNetV2's; two strides of 2 are taken out so that a 32×32 image still has a
4×4 map at the end. Every channel count scales with the width of the stem, the last one included.
"""

from typing import NamedTuple

from torch import Tensor, nn

__all__ = ["mobilenetv2"]

DEFAULT_WIDTH = 32


class _Stage(NamedTuple):
    expansion: int
    channels: int  # at the default width
    depth: int
    stride: int


_STAGES = (
    _Stage(1, 16, 1, 1),
    _Stage(6, 24, 2, 1),
    _Stage(6, 32, 3, 2),
    _Stage(6, 64, 4, 2),
    _Stage(6, 96, 3, 1),
    _Stage(6, 160, 3, 2),
    _Stage(6, 320, 1, 1),
)
_LAST_CHANNELS = 1280


def _scaled(channels: int, width: int) -> int:
    """Scale a channel count of the table to the nearest multiple of 8, and never below 8."""
    exact = channels * width // DEFAULT_WIDTH
    return max(8, (exact + 4) // 8 * 8)


def _conv_norm(
    in_channels: int, channels: int, *, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(
        in_channels,
        channels,
        kernel,
        stride=stride,
        padding=kernel // 2,
        groups=groups,
        bias=False,
    )
    return [conv, nn.BatchNorm2d(channels)]


class InvertedResidual(nn.Module):
    """Widen with 1×1, filter each channel with 3×3, narrow with 1×1; add where the shape stays."""

    def __init__(self, in_channels: int, channels: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [*_conv_norm(in_channels, hidden), nn.ReLU6()]
        layers += [*_conv_norm(hidden, hidden, kernel=3, stride=stride, groups=hidden), nn.ReLU6()]
        layers += _conv_norm(hidden, channels)  # linear bottleneck: no activation after it
        self.body = nn.Sequential(*layers)
        self.adds_input = stride == 1 and in_channels == channels
        self.step: nn.Parameter | None
        self.register_parameter("step", None)  # room for methods that scale the branch

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.body(x)
        out = out if self.step is None else out * self.step
        return x + out if self.adds_input else out


class MobileNetV2(nn.Module):
    """A stack of inverted residuals, pooled and read by one linear layer."""

    def __init__(self, *, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_conv_norm(in_channels, width, kernel=3), nn.ReLU6())
        blocks, previous = [], width
        for expansion, table_channels, depth, first_stride in _STAGES:
            channels = _scaled(table_channels, width)
            for stride in [first_stride] + [1] * (depth - 1):
                blocks.append(
                    InvertedResidual(previous, channels, expansion=expansion, stride=stride)
                )
                previous = channels
        self.blocks = nn.Sequential(*blocks)
        last = _scaled(_LAST_CHANNELS, width)
        self.last = nn.Sequential(*_conv_norm(previous, last), nn.ReLU6())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(last, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        out = self.last(self.blocks(self.stem(x)))
        logits: Tensor = self.head(self.pool(out).flatten(1))
        return logits


def mobilenetv2(num_classes: int, in_channels: int = 3, width: int = DEFAULT_WIDTH) -> MobileNetV2:
    """Build a MobileNetV2 for images of 32×32 and up; width is the stem's channels."""
    return MobileNetV2(num_classes=num_classes, in_channels=in_channels, width=width)
