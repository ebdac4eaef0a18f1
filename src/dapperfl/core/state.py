"""A model's tensors by name, buffers included, and the little arithmetic shared on them."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


def snapshot(module: nn.Module) -> State:
    """Copy a module's state, so that later training does not change it."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def num_bytes(state: State) -> int:
    """Count the bytes of all tensors."""
    return sum([tensor.nbytes for tensor in state.values()])


def overwrite(into: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a state into others of the same names.

    Those of the same memory format go in one kernel; a single other one would spoil that.
    """
    alike: tuple[list[Tensor], list[Tensor]] = [], []
    others: tuple[list[Tensor], list[Tensor]] = [], []
    for name, tensor in into.items():
        if name in state:
            to, of = alike if tensor.stride() == state[name].stride() else others
            to.append(tensor)
            of.append(state[name])
    with torch.no_grad():
        for to, of in (alike, others):
            if to:
                torch._foreach_copy_(to, of)


def whole_block(tensor: Tensor) -> Tensor:
    """Return the tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def blocks_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors that these are views of, each once."""
    bases = [each if each._base is None else each._base for each in tensors]
    return list({id(base): base for base in bases}.values())
