"""What a federated method is: a frozen bag of hyper-parameters and a few functions.

Every default is FedAvg. A method holds no state, no device, no optimiser and no loop, so the same
object runs in simulation and on real devices. `loss` is pure: it reads tensors and returns one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

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
from dapperfl.settings import check_settings

Statistics = Literal["average", "recalibrate"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods; its fields are the hyper-parameters, its functions the algorithm."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}

    def __post_init__(self) -> None:
        check_settings(self)

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
