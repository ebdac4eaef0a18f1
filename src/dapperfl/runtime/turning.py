"""Channels last: how filters and pictures lie in memory where kernels want the channels together.

On a CPU a net turns its pictures as they come, and what it makes of them stays turned to the end;
its filters, which methods look at, lie as ever. On a GPU filters are turned too.

Most nets do not notice. Some ask how a tensor lies: `x.view(len(x), -1)` of a turned feature map
fails. So a net is tried before it is turned.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from dapperfl.core.submodel import copy_net
from dapperfl.core.trial import MISFITS, first_line, private_rng
from dapperfl.runtime.precision import Precision

CLOSE = 1e-3  # of the largest logit: another order of sums makes no larger difference in fp32
ROUGH = 5e-2  # and in other formats, for which a GPU may round every product to ten bits
logger = logging.getLogger(__name__)


def turn(net: nn.Module) -> nn.Module:
    """Lay all filters of pictures out with channels last; filters of volumes stay as they are."""
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return net


def laid_out(net: nn.Module, turns: bool) -> nn.Module:
    """Let a net on a CPU turn the pictures that it is given, if it can; nobody else notices."""
    if turns and all(parameter.device.type == "cpu" for parameter in net.parameters()):
        net.register_forward_pre_hook(_turned)
    return net


def _turned(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Turn pictures on their way into a net."""
    x, *others = given
    if isinstance(x, Tensor) and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, *others


def can_turn(net: nn.Module, example: Tensor, precision: Precision = "fp32") -> bool:
    """Try a step of a net with channels last, which the net itself does not notice.

    Args:
        net: Any module that maps a batch to logits.
        example: A batch of inputs; its first entry is enough.
        precision: Below fp32 filters are tried turned as well. The log says why they cannot be.
    """
    batch = torch.cat([example[:1]] * 2)
    straight, turned = copy_net(net).eval(), copy_net(net)
    turned.register_forward_pre_hook(_turned)
    if precision != "fp32":
        turn(turned)
    try:
        with private_rng(example.device), torch.no_grad():
            expected = straight(_noise(batch))
        with private_rng(example.device):
            found = _stepped(turned.eval(), _noise(batch))
        with private_rng(example.device):
            _stepped(turned.train(), _noise(batch))
        close = CLOSE if precision == "fp32" else ROUGH
        obstacle = "" if _alike(found, expected, close) else "its answers would not be the same"
    except MISFITS as error:
        obstacle = first_line(error)
    if obstacle:
        wants = "a CPU" if example.device.type == "cpu" and precision == "fp32" else precision
        level = logging.DEBUG if wants == "fp32" else logging.INFO
        logger.log(level, "the net cannot hold channels last, as %s wants it: %s", wants, obstacle)
    return not obstacle


def _noise(batch: Tensor) -> Tensor:
    """Return pictures that hide nothing."""
    return torch.randn_like(batch)


@torch.enable_grad()
def _stepped(net: nn.Module, batch: Tensor) -> Tensor:
    """Run a net there and back."""
    out: Tensor = net(batch)
    if out.requires_grad:
        out.sum().backward()  # type: ignore[no-untyped-call]
    return out.detach()


def _alike(found: Tensor, expected: Tensor, close: float) -> bool:
    """Tell whether logits are the same but for rounding."""
    most = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=0, atol=close * most, equal_nan=True)
