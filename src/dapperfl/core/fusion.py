"""Model Fusion Pruning, first half: blend the global model into the locally tuned one."""

from collections.abc import Collection
from functools import lru_cache

import torch
from torch import Tensor

from dapperfl.core.flat import cut_up, end_to_end, wanted
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
    flat: bool | None = None,
) -> State:
    """Return alpha W + (1 - alpha) ŵ for the parameters (Eq. 1); buffers stay local.

    Buffers describe data, not knowledge. A state does not say which of its tensors they are:
    without `parameters`, these are all floating-point tensors but batch-norm statistics.
    With `flat` the whole state is blended at once, laid end to end: the same numbers in a few large
    steps, which a GPU wants; by default where the state is on one.
    """
    if parameters is None:
        parameters = [name for name, local in local_state.items() if _is_parameter(name, local)]
    if alpha == 0 or not parameters:  # a zero coefficient skips its term
        return dict(local_state)
    names = [name for name, tensor in local_state.items() if tensor.dtype.is_floating_point]
    if _are_alike(global_state, local_state, names) and (
        wanted(local_state[names[0]].device) if flat is None else flat
    ):
        return {**local_state, **_fuse_flat(global_state, local_state, names, alpha, parameters)}
    known = [global_state[name] for name in parameters]
    tuned = [local_state[name] for name in parameters]
    blended = torch._foreach_add(
        torch._foreach_mul(known, alpha), torch._foreach_mul(tuned, 1 - alpha)
    )
    return {**local_state, **dict(zip(parameters, blended, strict=True))}


def _are_alike(known: State, tuned: State, names: list[str]) -> bool:
    """Tell whether all these tensors are in both states, of one type and on one device."""
    if not all(name in known for name in names):
        return False
    return len({(t.dtype, t.device) for n in names for t in (known[n], tuned[n])}) == 1


def _fuse_flat(
    known: State, tuned: State, names: list[str], alpha: float, parameters: Collection[str]
) -> State:
    ours = end_to_end([tuned[name] for name in names])
    blended = end_to_end([known[name] for name in names]) * alpha + ours * (1 - alpha)
    chosen = tuple((tuned[name].numel(), name in parameters) for name in names)
    whole = torch.where(_repeated(chosen, ours.device), blended, ours)
    shapes = tuple(tuple(tuned[name].shape) for name in names)
    return dict(zip(names, cut_up(whole, shapes), strict=True))


@lru_cache(maxsize=16)
def _repeated(chosen: tuple[tuple[int, bool], ...], device: torch.device) -> Tensor:
    """Say of each entry of all tensors whether it is chosen, given that of each tensor."""
    sizes, flags = zip(*chosen, strict=True)
    there = torch.tensor(flags).repeat_interleave(torch.tensor(sizes)).to(device)
    if device.type == "cuda":  # it is kept, and read on any stream from now on
        torch.cuda.current_stream(device).synchronize()
    return there


def _is_parameter(name: str, tensor: Tensor) -> bool:
    statistic = name.rpartition(".")[2] in ("running_mean", "running_var")
    return tensor.is_floating_point() and not statistic
