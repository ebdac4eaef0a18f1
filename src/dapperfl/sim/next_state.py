"""What a method's server makes of a round, looked at before the next one begins with it."""

from torch import Tensor

from dapperfl.core.messages import Assignment, ServerState
from dapperfl.core.state import State
from dapperfl.errors import RunError
from dapperfl.methods.base import Method


def checked_state(method: Method, before: ServerState, after: object) -> ServerState:
    """Return the state that `update` gave, if a round can begin with it and a file hold it.

    Raises:
        RunError: It is of another round, or its tensors are not those of the net.
    """
    name, wanted = type(method).__name__, before.round_num + 1
    if not isinstance(after, ServerState) or after.round_num != wanted:
        found = f"that of round {after.round_num}" if isinstance(after, ServerState) else after
        raise RunError(
            f"{name}.update must return the state of round {wanted}, as server.advance(weights) "
            f"does, not {found}"
        )
    if wrong := _difference(before.weights, after.weights):
        raise RunError(
            f"{name}.update must return every tensor of the net, buffers too, in its shape: {wrong}"
        )
    for key, value in after.extra.items():
        if not isinstance(value, Tensor):
            raise RunError(
                f'{name}.update keeps a {type(value).__name__} in extra["{key}"]; only tensors are '
                "there after a resume, so write torch.tensor(…)"
            )
    return after


def checked_assignment(method: Method, server: ServerState, assignment: Assignment) -> Assignment:
    """Return what `assign` gave for a device, if it is of this round.

    Raises:
        RunError: It is not.
    """
    wanted = server.round_num + 1
    if assignment.round_num != wanted:
        raise RunError(
            f"{type(method).__name__}.assign must ask for round {wanted}, server.round_num + 1, "
            f"not for {assignment.round_num}"
        )
    return assignment


def _difference(before: State, after: State) -> str:
    """Say in a few words what of a state is missing, unknown or of another shape."""
    if lost := before.keys() - after.keys():
        return f'"{min(lost)}" is missing'
    if more := after.keys() - before.keys():
        return f'the net has no "{min(more)}"'
    for name, tensor in before.items():
        if after[name].shape != tensor.shape:
            return f'"{name}" has {tuple(after[name].shape)}, not {tuple(tensor.shape)}'
    return ""
