"""A server with a tiny net, and replies made by hand, for tests of single methods."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.tiny import tiny_graph, tiny_net
from torch import Tensor, nn

from dapperfl.core.messages import (
    Assignment,
    ClientCost,
    ClientUpdate,
    Device,
    LocalModel,
    ServerState,
    Work,
)
from dapperfl.core.rng import Dice
from dapperfl.core.state import State, snapshot
from dapperfl.methods.base import Method


def fleet_of(rhos: Sequence[float]) -> list[Device]:
    return [Device(number, "light", rho, 10) for number, rho in enumerate(rhos)]


def server_of(
    method: Method, rhos: Sequence[float] = (0.0, 0.4, 0.6), net: nn.Module | None = None
) -> ServerState:
    """Return the state before round 1, with the net that the method prepares."""
    net = method.prepare(net or tiny_net(), "fc")
    return method.init(LocalModel(snapshot(net), tiny_graph(net).full()), fleet_of(rhos))


def assigned(method: Method, server: ServerState, device: int, seed: int = 0) -> Assignment:
    dice = Dice(seed, server.round_num + 1, device)
    assignment = method.assign(server, server.fleet[device], 5, dice)
    assert assignment is not None
    return assignment


def reply(
    assignment: Assignment, change: Callable[[Tensor], Tensor], samples: int = 10, **facts: Any
) -> ClientUpdate:
    """Answer an assignment with its weights, each float tensor changed."""
    weights: State = {
        name: change(tensor) if tensor.is_floating_point() else tensor
        for name, tensor in assignment.model.weights.items()
    }
    model = LocalModel(weights, assignment.model.submodel)
    return ClientUpdate(assignment.device, model, samples, ClientCost(), **facts)


def round_of(
    method: Method,
    server: ServerState,
    changes: Sequence[Callable[[Tensor], Tensor]],
    samples: Iterable[int] = (10, 20, 30),
) -> ServerState:
    """Run a round in which device i changes its weights by the i-th function."""
    updates = []
    for device, (change, count) in enumerate(zip(changes, samples, strict=False)):
        assignment = assigned(method, server, device)
        updates.append(reply(assignment, change, count, shared=assignment.shared))
    return method.update(server, iter(updates))


def work_for(server: ServerState, memory: State | None = None, shared: State | None = None) -> Work:
    """Return what a client hook of the first device sees."""
    return Work(server.round_num + 1, server.fleet[0], server.model, 5, shared or {}, memory or {})
