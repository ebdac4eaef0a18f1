"""Numbers in 16 bits on their way up, and how much that loses."""

from dataclasses import dataclass
from math import sqrt

import torch

from dapperfl.core.state import State
from dapperfl.runtime.packing import is_wide


@dataclass(frozen=True)
class Rounding:
    """What 16 bits have lost of a model, as its sender measured it."""

    max_abs_error: float  # of any one number
    relative_error: float  # the error's l2 norm over that of the numbers


def halved(state: State) -> tuple[State, Rounding | None]:
    """Return a state with its floats in 16 bits; as it was, and None, if one of them is too large.

    A number beyond ±65504 would become infinite, and one such model spoil a round.
    """
    small, lost, whole, worst = dict(state), 0.0, 0.0, 0.0
    for name, tensor in state.items():
        if not is_wide(tensor.dtype) or not tensor.numel():
            continue
        small[name] = tensor.to(torch.float16)
        error = small[name].double() - tensor.double()
        worst = max(worst, float(error.abs().max()))
        lost += float(error.square().sum())
        whole += float(tensor.double().square().sum())
        if not small[name].isfinite().all():
            return state, None
    return small, Rounding(worst, sqrt(lost / whole) if whole else 0.0)
