"""Nets of a few lines, made in the test that needs them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dapperfl.core.channels import ChannelGraph


class Made(nn.Module):
    """A net whose forward is a function of itself and the input."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def conv(cin: int, cout: int, k: int = 3, **settings: Any) -> nn.Conv2d:
    """A convolution that keeps the size of the map."""
    return nn.Conv2d(cin, cout, k, padding=k // 2, **settings)


def learnt(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape))


def gap(x: Tensor) -> Tensor:
    """Pool globally."""
    return x.mean((2, 3))


def trace(
    forward: Callable[[Any, Tensor], Any], **parts: Any
) -> tuple[dict[str, int], dict[str, str]]:
    """Trace a net; return the sizes of its groups, and what is fixed besides its output."""
    graph = ChannelGraph.trace(Made(forward, **parts), torch.zeros(1, 3, 8, 8))
    fixed = {name: why for name, why in graph.fixed.items() if why != "the net's output"}
    return {group.name: group.size for group in graph.groups}, fixed


def assert_cut(forward, parts, sizes, reasons):
    """Trace a net, and compare what may be cut, and why the rest stays."""
    found, fixed = trace(forward, **parts)
    assert found == sizes
    assert fixed.keys() == reasons.keys()
    assert all(words in fixed[name] for name, words in reasons.items()), fixed
