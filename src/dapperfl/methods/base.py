"""What a federated method is: a frozen bag of hyper-parameters and a few functions.

Every default is FedAvg. A method holds no state, no device, no optimiser and no loop, so the same
object runs in simulation and on real devices. `loss` is pure: it reads tensors and returns one.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dapperfl.core.aggregation import Aggregator, RecoveredMean
from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    Device,
    LocalModel,
    Report,
    ServerState,
    Work,
)
from dapperfl.core.net import Batch, Net
from dapperfl.core.submodel import Submodel
from dapperfl.errors import ConfigError

Statistics = Literal["average", "recalibrate"]


def param(default: Any, help: str, **limits: float) -> Any:  # noqa: A002
    """Declare a hyper-parameter: its default, a line of help, and limits `low`, `high`, `below`."""
    return dataclasses.field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods; its fields are the hyper-parameters, its functions the algorithm."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if get_origin(hints[field.name]) is Literal and value not in get_args(
                hints[field.name]
            ):
                choices = ", ".join(map(str, get_args(hints[field.name])))
                raise ConfigError(f"{field.name} must be one of {choices}, not {value}")
            _check_limits(field.name, value, field.metadata)

    @classmethod
    def from_preset(cls, preset: str = "default", **overrides: Any) -> Self:
        """Build the method with a named set of values, some of them changed."""
        if preset not in cls.presets:
            known = ", ".join(cls.presets)
            raise ConfigError(f'unknown preset "{preset}" of {cls.__name__}; choose one of {known}')
        return cls(**{**cls.presets[preset], **overrides})

    # --- once ---

    def prepare(self, net: nn.Module) -> nn.Module:
        """Return the net this method trains, e.g. with an added layer."""
        return net

    def init(self, model: LocalModel, fleet: Sequence[Device]) -> ServerState:
        """Return the server's state before the first round."""
        return ServerState(0, model, tuple(fleet))

    @property
    def statistics(self) -> Statistics:
        """How the global model gets its batch-norm statistics."""
        return "average"

    # --- server ---

    def compact(self, model: LocalModel, rho: float) -> Submodel:
        """Choose the submodel of a global or tuned model that a device at level rho can train."""
        return model.submodel.graph.full()

    def assign(
        self, server: ServerState, device: Device, epochs: int, rng: torch.Generator
    ) -> Assignment | None:
        """Say what a device is to do in the next round; None leaves it out."""
        return Assignment(server.round_num + 1, device, server.model, epochs)

    def aggregator(self, server: ServerState) -> Aggregator:
        """Return what folds the client models of a round (Eq. 6, 7)."""
        return RecoveredMean(server.weights)

    def update(self, server: ServerState, updates: Iterable[ClientUpdate]) -> ServerState:
        """Fold the updates that came, one at a time, into the next server state."""
        mean = self.aggregator(server)
        for update in updates:
            mean.add(update.model, update.num_samples)
        return server.advance(mean.result())

    # --- client ---

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return the objective of one batch."""
        return cross_entropy(net(batch.x), batch.y)

    def after_epoch(self, epoch: int, local: LocalModel, work: Work) -> LocalModel:
        """Return the model to go on with; a smaller one makes the net physically smaller."""
        return local

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Return what to send beside the weights, and what to keep for later rounds."""
        return Report(memory=work.memory)


def _check_limits(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    """Refuse a hyper-parameter outside its limits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high, below = (limits.get(key) for key in ("low", "high", "below"))
    good = (low is None or value >= low) and (high is None or value <= high)
    good = good and (below is None or value < below) and value == value
    if not good:
        edges = [
            f"at least {low}" if low is not None else "",
            f"at most {high}" if high is not None else "",
            f"below {below}" if below is not None else "",
        ]
        raise ConfigError(f"{name} must be {' and '.join(filter(None, edges))}, not {value}")
