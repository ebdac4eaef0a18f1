"""A model's tensors by name, buffers included, and the little arithmetic shared on them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def snapshot(module: nn.Module) -> State:
    """Copy a module's state, so that later training does not change it."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def num_bytes(state: State) -> int:
    """Count the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def overwrite(into: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a state into others of the same names.

    Those of the same memory format go in one kernel; a single other one would spoil that.
    """
    pairs = [(tensor, state[name]) for name, tensor in into.items() if name in state]
    alike = [pair for pair in pairs if pair[0].stride() == pair[1].stride()]
    others = [pair for pair in pairs if pair[0].stride() != pair[1].stride()]
    with torch.no_grad():
        for group in (alike, others):
            if group:
                torch._foreach_copy_([to for to, _ in group], [of for _, of in group])


def whole_block(tensor: Tensor) -> Tensor:
    """Return the tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base
