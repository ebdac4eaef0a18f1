"""Channels last: how filters and pictures lie in memory where kernels want the channels together.

Most nets do not notice. Some ask how a tensor lies: `x.view(len(x), -1)` of a turned feature map
fails. So a net is tried before it is turned.
"""

import logging

import torch
from torch import Tensor, nn

from dapperfl.core.submodel import copy_net
from dapperfl.core.trial import MISFITS, first_line, private_rng
from dapperfl.runtime.precision import Precision

logger = logging.getLogger(__name__)


def turn(net: nn.Module) -> nn.Module:
    """Lay all filters of pictures out with channels last; filters of volumes stay as they are."""
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return net


def can_turn(net: nn.Module, example: Tensor, precision: Precision = "fp32") -> bool:
    """Try a step of a net with channels last, which the net itself does not notice.

    Args:
        net: Any module that maps a batch to logits.
        example: A batch of inputs; its first entry is enough.
        precision: Where it wants channels last, the log says why they are not.
    """
    batch = example[:1].repeat(2, *[1] * (example.dim() - 1))
    if batch.dim() == 4:
        batch = batch.contiguous(memory_format=torch.channels_last)
    turned = turn(copy_net(net))
    try:
        for training in (False, True):
            with private_rng(example.device), torch.enable_grad():
                out = turned.train(training)(batch.clone())
                if out.requires_grad:
                    out.sum().backward()
    except MISFITS as error:
        level = logging.DEBUG if precision == "fp32" else logging.INFO
        logger.log(
            level,
            "the net cannot hold channels last, as %s would have it: %s",
            precision,
            first_line(error),
        )
        return False
    return True
