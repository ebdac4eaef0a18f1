"""Multiplications that no weight's size tells: attention, gating, and calls without a rule.

They are counted by torch itself: a call is run once more, forward and backward, under its counter.
So an operation needs no formula, however it is written. A product of parameters alone is made once
a batch, not for each sample, and is not counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dapperfl.core.calls import Call, tensors_in
from dapperfl.core.tracing import Product, Trace


def _in_place(_: torch.Size, first: torch.Size, second: torch.Size, **__: object) -> int:
    """Count what torch's counter knows in its other form only."""
    return 2 * prod(first) * second[-1]


def _convolution_backward(
    grad: torch.Size, x: torch.Size, weight: torch.Size, *rest: Any, **_: object
) -> int:
    """Count gradients of grouped convolutions as they are; torch counts them as if not grouped."""
    *_settings, transposed, _padding, _groups, wanted = rest  # of the input, the weight, the bias
    positions = prod((x if transposed else grad)[2:])
    return int(2 * grad[0] * positions * prod(weight) * sum(wanted[:2]))


_BACK = {torch.ops.aten.convolution_backward: _convolution_backward}
_MORE = {torch.ops.aten.addmm_: _in_place, torch.ops.aten.baddbmm_: _in_place}


def count_products(trace: Trace, call: Call) -> None:
    """Remember the multiplications of a call whose channels all stay.

    It is run on a CPU and without fused kernels, which torch cannot see into (recurrent layers), or
    which compute scores twice (attention): the same number on all machines.
    """
    leaves = {id(t): t.detach().cpu().requires_grad_(t.requires_grad) for t in call.operands()}
    # A net that is being watched may be inside torch.utils.checkpoint, whose hooks are not for us.
    plain = saved_tensors_hooks(_same, _same)
    with sdpa_kernel(SDPBackend.MATH), _without_onednn(), plain:
        with FlopCounterMode(display=False, custom_mapping=_MORE) as forward:
            out = call.again(lambda tensor: leaves[id(tensor)].clone())
        results = [result for result in tensors_in(out) if result.requires_grad]
        with FlopCounterMode(display=False, custom_mapping=_BACK) as backward:
            if results:
                wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
                ones = [torch.ones_like(result) for result in results]
                torch.autograd.grad(results, wanted, ones, allow_unused=True)
    once, back = forward.get_total_flops(), backward.get_total_flops()
    if once or back:
        product = Product(once // (2 * trace.batch), (once + back) // trace.batch)
        trace.products.append(product)
        trace.remember_way(product, call.results())


def _same(tensor: Tensor) -> Tensor:
    return tensor


@contextmanager
def _without_onednn() -> Iterator[None]:
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
