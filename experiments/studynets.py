"""Nets as tutorials have them, which section 32 of docs/research-log.md was measured with.

PYTHONPATH=experiments dapperfl run --set net.name=studynets:Plain --set train.lr=0.02
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class BNCnn(nn.Module):
    """Three convolutions, each with batch norm and max pooling, and a hidden layer without norm."""

    normalised = True

    def __init__(self, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = [in_channels, width, 2 * width, 4 * width]
        for before, after in pairwise(sizes):
            norm = [nn.BatchNorm2d(after)] if self.normalised else []
            layers += [
                *(nn.Conv2d(before, after, 3, padding=1), *norm),
                *(nn.ReLU(), nn.MaxPool2d(2)),
            ]
        self.f = nn.Sequential(*layers)
        self.fc1 = nn.Linear(64 * width, 8 * width)  # pictures of 32 pixels are 4 wide by now
        self.fc2 = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.fc2(self.fc1(self.f(x).flatten(1)).relu())
        return logits


class Plain(BNCnn):
    """The same without any norm."""

    normalised = False


class Vit(nn.Module):
    """A small vision transformer: layer norms, and no batch norm."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3, width: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(in_channels, width, 4, 4)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.l = nn.ModuleList(_block(width) for _ in range(3))
        self.n = nn.LayerNorm(width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos  # (batch, positions, width)
        for layer in self.l:
            batch, positions, _ = x.shape
            parts = layer["q"](layer["n1"](x)).chunk(3, -1)
            q, k, v = (each.reshape(batch, positions, 4, -1).transpose(1, 2) for each in parts)
            y = scaled_dot_product_attention(q, k, v).transpose(1, 2)
            x = x + layer["o"](y.reshape(batch, positions, -1))
            x = x + layer["b"](gelu(layer["a"](layer["n2"](x))))
        logits: Tensor = self.fc(self.n(x).mean(1))
        return logits


def _block(width: int) -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            **{"n1": nn.LayerNorm(width), "q": nn.Linear(width, 3 * width)},
            **{"o": nn.Linear(width, width), "n2": nn.LayerNorm(width)},
            **{"a": nn.Linear(width, 4 * width), "b": nn.Linear(4 * width, width)},
        }
    )
