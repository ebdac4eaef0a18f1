"""Model Fusion Pruning, first half: blend the global model into the locally tuned one."""

from collections.abc import Collection

import torch
from torch import Tensor

from dapperfl.core.state import State


def fusion_factor(t: int, alpha_0: float, alpha_min: float, epsilon: float) -> float:
    """Return alpha^t = max{(1 - epsilon)^(t-1) alpha_0, alpha_min} (Eq. 2); rounds start at 1."""
    if t < 1:
        raise ValueError(f"rounds start at 1, not {t}")
    return max((1 - epsilon) ** (t - 1) * alpha_0, alpha_min)


def fuse(
    global_state: State,
    local_state: State,
    alpha: float,
    *,
    parameters: Collection[str] | None = None,
) -> State:
    """Return alpha W + (1 - alpha) ŵ for the parameters (Eq. 1); buffers stay local.

    Buffers describe data, not knowledge. A state does not say which of its tensors they are:
    without `parameters`, these are all floating-point tensors but batch-norm statistics.
    """
    if parameters is None:
        parameters = [name for name, local in local_state.items() if _is_parameter(name, local)]
    if alpha == 0 or not parameters:  # a zero coefficient skips its term
        return dict(local_state)
    known = [global_state[name] for name in parameters]
    tuned = [local_state[name] for name in parameters]
    blended = torch._foreach_add(  # all tensors in a few kernels
        torch._foreach_mul(known, alpha), torch._foreach_mul(tuned, 1 - alpha)
    )
    return {**local_state, **dict(zip(parameters, blended, strict=True))}


def _is_parameter(name: str, tensor: Tensor) -> bool:
    statistic = name.rpartition(".")[2] in ("running_mean", "running_var")
    return tensor.is_floating_point() and not statistic
