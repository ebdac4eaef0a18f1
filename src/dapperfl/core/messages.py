"""What server and clients say to each other, in simulation and over a network alike.

`Assignment` and `ClientUpdate` cross the wire; where a method recalibrates batch-norm statistics,
`StatisticsTask` and `Moments` do as well. `memory` never leaves its client.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel


@dataclass(frozen=True)
class Device:
    """A thing with data of one domain and a capacity: it removes a share rho of the parameters."""

    id: int
    domain: str
    rho: float
    num_samples: int


@dataclass(frozen=True)
class LocalModel:
    """Weights (buffers included) of a submodel; small tensors, not masked ones."""

    weights: State = field(repr=False)
    submodel: Submodel


@dataclass(frozen=True)
class Assignment:
    """Server → client: train this model for so many epochs."""

    round_num: int
    device: Device
    model: LocalModel
    epochs: int
    shared: State = field(default_factory=dict)  # a method's own tensors, e.g. prototypes


@dataclass(frozen=True)
class Work(Assignment):
    """What client hooks see: the assignment, and what this client kept from earlier rounds."""

    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What a client sends beside its weights, and what it keeps for itself."""

    shared: State = field(default_factory=dict)
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class ClientCost:
    """What one client spent in one round."""

    parameters_trained: int = 0  # of the net it trained last
    parameters_uploaded: int = 0
    peak_parameters: int = 0  # the most it held at once as a net
    train_flops: int = 0  # dense epochs and statistics passes included
    bytes_up: int = 0
    bytes_down: int = 0

    def __add__(self, other: Self) -> "ClientCost":
        return ClientCost(
            max(self.parameters_trained, other.parameters_trained),
            max(self.parameters_uploaded, other.parameters_uploaded),
            max(self.peak_parameters, other.peak_parameters),
            self.train_flops + other.train_flops,
            self.bytes_up + other.bytes_up,
            self.bytes_down + other.bytes_down,
        )


@dataclass(frozen=True)
class ClientUpdate:
    """Client → server: the trained submodel, and how many samples stand behind it."""

    device: Device
    model: LocalModel
    num_samples: int
    cost: ClientCost
    shared: State = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StatisticsTask:
    """Server → client, after the update: run your data once through the new global net."""

    round_num: int
    device: Device
    model: LocalModel


@dataclass(frozen=True)
class Moments:
    """Client → server: mean and second moment of every batch-norm layer's input."""

    device: Device
    num_samples: int
    cost: ClientCost
    means: State  # by the name of the running mean
    second: State  # by the name of the running variance


@dataclass(frozen=True)
class LeftOut:
    """A client that did not take part in a round, and why."""

    device: Device
    reason: str


@dataclass(frozen=True)
class ServerState:
    """All the server remembers between rounds."""

    round_num: int  # of the last complete round; 0 before the first
    model: LocalModel  # the global model
    fleet: tuple[Device, ...]
    extra: State = field(default_factory=dict)  # a method's own tensors
    mean: State = field(default_factory=dict)  # a running mean of the global weights, if wanted
    styles: State = field(default_factory=dict)  # what devices' pictures look like, if wanted

    @property
    def weights(self) -> State:
        """The global weights W."""
        return self.model.weights

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """The shares rho that the devices remove, ascending; looked up once for a large fleet."""
        return tuple(sorted({device.rho for device in self.fleet}))

    def once(self, owner: object, key: Hashable, cut: Callable[[], LocalModel]) -> LocalModel:
        """Return what an owner cuts from this state under a key: once, not once a device."""
        place = id(owner), key
        if place not in self._cuts:
            self._cuts[place] = owner, cut()  # the owner stays, or another could have its id
        return self._cuts[place][1]

    @cached_property
    def _cuts(self) -> dict[tuple[int, Hashable], tuple[object, LocalModel]]:
        return {}

    def advance(self, weights: State, extra: State | None = None) -> "ServerState":
        """Return the state after one more round."""
        model = LocalModel(weights, self.model.submodel)
        kept = self.extra if extra is None else extra
        return replace(self, round_num=self.round_num + 1, model=model, extra=kept)

    def averaged(self, last: State, part: float) -> "ServerState":
        """Return this state with a running mean over about a part of the rounds so far.

        In round t the new model has the weight 1 / (part · t), or 1 where the part is less than a
        round: the mean forgets at the pace at which learning slows down, and short runs have none.
        """
        share = 1 - 1 / max(1.0, part * self.round_num)
        extra = {_EXTRA + name: tensor for name, tensor in self.extra.items()}
        now = {**self.weights, **extra}
        if share == 0:
            return replace(self, mean=now)
        return replace(self, mean={n: _mixed(t, last.get(n), share) for n, t in now.items()})

    def smooth(self) -> "ServerState":
        """Return the state whose global model is the running mean, if there is one.

        So are a method's own tensors, which may be parts of models (the norms of NeFL's levels).
        """
        if not self.mean:
            return self
        extra = {name: self.mean.get(_EXTRA + name, own) for name, own in self.extra.items()}
        weights = {name: self.mean[name] for name in self.weights}
        return replace(self, model=LocalModel(weights, self.model.submodel), extra=extra)

    def showing(self, weights: State) -> "ServerState":
        """Return the state that has these weights where `smooth` finds its own."""
        if self.mean:
            return replace(self, mean={**self.mean, **weights})
        return replace(self, model=LocalModel(weights, self.model.submodel))


_EXTRA = "extra/"  # what the names of a method's own tensors begin with in the running mean


def _mixed(now: Tensor, last: Tensor | None, share: float) -> Tensor:
    """Return a mean of both; counters, and what had another shape, are taken as they are now."""
    if last is None or not now.is_floating_point() or now.shape != last.shape:
        return now
    return torch.lerp(now, last, share)
