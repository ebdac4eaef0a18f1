"""What a net really multiplies, counted by torch while it runs."""

from math import prod
from typing import Any

import torch
from tests.core.zoo_cuts import loss_of, run
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from dapperfl.core.calls import canonical_name

_WEIGHT_AT = {"batch_norm": 3, "instance_norm": 3, "group_norm": 2, "layer_norm": 2}


class NormEntries(TorchFunctionMode):
    """Counts the entries that norms with weights put out, which torch's counter leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), canonical_name(func)
        if name in _WEIGHT_AT:
            rest = dict(enumerate(args))
            weight = rest.get(_WEIGHT_AT[name], (kwargs or {}).get("weight"))
            self.count += out.numel() if weight is not None else 0
        return out


def backward_of_convolution(
    grad: Any, x: Any, w: Any, _b: Any, _s: Any, _p: Any, _d: Any, transposed: bool, *rest: Any,
    out_shape: Any = None,
) -> int:  # fmt: skip
    """Count gradients of grouped convolutions as they are; torch counts them as if not grouped."""
    positions = prod((x if transposed else grad)[2:])
    return int(2 * grad[0] * positions * prod(w) * sum(rest[-1][:2]))


def work_of(net: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the MACs and the training FLOPs of a net for one of these inputs."""
    backward = {torch.ops.aten.convolution_backward: backward_of_convolution}
    with sdpa_kernel(SDPBackend.MATH):  # fused kernels on the CPU are not counted
        with FlopCounterMode(display=False) as forward, NormEntries() as norms:
            run(net, x)
        with FlopCounterMode(display=False, custom_mapping=backward) as both:
            loss_of(net, x).backward()
    macs = forward.get_total_flops() // 2 + 2 * norms.count
    assert macs % len(x) == both.get_total_flops() % len(x) == 0
    return macs // len(x), both.get_total_flops() // len(x)
