"""The terms of the local objective: cross-entropy (Eq. 4) and the representation's norm (Eq. 3)."""

from typing import Literal

import torch
from torch import Tensor


def feature_norm(z: Tensor, power: int = 2, reduce: Literal["sum", "mean"] = "sum") -> Tensor:
    """Return the batch mean of ‖z‖₂^power, Domain Adaptive Regularisation (Eq. 3).

    Args:
        z: Representations, (batch, features).
        power: 2 as in the paper, 1 as in the authors' release.
        reduce: "sum" over features as in the paper; "mean" divides ‖z‖₂² by their number first,
            so that the term does not grow with the width of the net.
    """
    if power not in (1, 2):
        raise ValueError(f"power must be 1 or 2, not {power}")
    if reduce not in ("sum", "mean"):
        raise ValueError(f'reduce must be "sum" or "mean", not "{reduce}"')
    z = z.flatten(1)
    scale = z.shape[1] if reduce == "mean" else 1
    if power == 2:
        penalty = z.square().sum(1).mean() / scale
    else:
        penalty = torch.linalg.vector_norm(z, dim=1).mean() / scale**0.5
    assert isinstance(penalty, Tensor)
    return penalty
