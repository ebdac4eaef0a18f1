"""A model's tensors by name, buffers included, and the little arithmetic shared on them."""

from torch import Tensor, nn

State = dict[str, Tensor]


def snapshot(module: nn.Module) -> State:
    """Copy a module's state, so that later training does not change it."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def num_bytes(state: State) -> int:
    """Count the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())
