"""Train as if pictures came from elsewhere: shift the statistics of early features at random.

Domains differ in colour, contrast and texture, which is what the mean and the deviation of a
channel over a picture hold in the first layers of a net (Li et al., "Uncertainty modeling for
out-of-distribution generalization", 2022). Both are moved at random, in half of the pictures, in
units of how much they differ within the batch.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

EARLY = 1 / 3  # of the layers
_TINY = 1e-6


def early_layers(net: nn.Module) -> Sequence[nn.Module]:
    """Return the first norm layers of a net, or convolutions where it has none."""
    modules = list(net.modules())
    norms = [each for each in modules if isinstance(each, (_NormBase, nn.GroupNorm))]
    convolutions = [each for each in modules if isinstance(each, nn.Conv2d)]
    found: Sequence[nn.Module] = norms or convolutions
    return found[: math.ceil(EARLY * len(found))]


def shift_statistics(features: Tensor, amount: float) -> Tensor:
    """Move mean and deviation of each channel of each picture; what a picture shows stays.

    Args:
        features: (batch, channels, height, width).
        amount: Standard deviation of the move, in deviations of the statistic over the batch.
    """
    with torch.no_grad():
        variance, mean = torch.var_mean(features.float(), (2, 3), keepdim=True, correction=0)
        deviation = (variance + _TINY).sqrt()
        moved_mean = mean + amount * _spread(mean) * torch.randn_like(mean)
        wider = amount * _spread(deviation) * torch.randn_like(deviation)
        moved_deviation = (deviation + wider).abs()
        chosen = torch.rand_like(mean[:, :1]) < 0.5
        scale = torch.where(chosen, moved_deviation / deviation, 1.0)
        offset = torch.where(chosen, moved_mean - mean * scale, 0.0)
    return features * scale.to(features.dtype) + offset.to(features.dtype)


def _spread(statistic: Tensor) -> Tensor:
    """Return how much a statistic differs between the pictures of a batch."""
    return statistic.var(0, keepdim=True, correction=0).sqrt()


@contextmanager
def shifted(net: nn.Module, amount: float) -> Iterator[None]:
    """Let a net shift the statistics of its early features, where it is in training mode."""

    def hook(layer: nn.Module, _: tuple[Any, ...], out: Tensor) -> Tensor | None:
        return shift_statistics(out, amount) if layer.training and out.dim() == 4 else None

    handles = [each.register_forward_hook(hook) for each in early_layers(net)] if amount else []
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
