"""Number formats of the training step, and the switches torch has for them.

`fp32` is exact and the same every time; `tf32` multiplies with ten bits of mantissa on a GPU;
`bf16` runs convolutions and matrix products in bfloat16 while weights and sums stay in float32.
"""

import os
from contextlib import AbstractContextManager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the context in which losses are computed and nets are run.

    The cache of cast weights is off: inside a captured step it would freeze the first weights.
    """
    return torch.autocast(
        device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False
    )


def set_arithmetic(precision: Precision, *, exact: bool = True) -> None:
    """Make CUDA compute in a precision; the switches are torch's and hold for the whole process.

    Args:
        precision: The number format.
        exact: A run gives the same numbers every time, or a resumed one would end elsewhere:
            torch's own default lets some kernels add up in any order. Without it, the fastest
            kernels are tried out and taken, whatever their order.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.benchmark = not exact
    torch.use_deterministic_algorithms(exact, warn_only=True)
    # Nothing here reads memory before it is written, and filling it costs a third of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
