"""FedAvg with a net for the weakest: everyone trains the same small prefix of the net."""

from dataclasses import dataclass, replace

import torch

from dapperfl.core.messages import Assignment, Device, LocalModel, ServerState
from dapperfl.core.rng import Dice
from dapperfl.core.scores import Scores, ordered_scores
from dapperfl.core.submodel import Submodel
from dapperfl.methods.base import MeasuringMethod, SubmodelMethod


@dataclass(frozen=True, kw_only=True)
class FedAvgSmall(MeasuringMethod, SubmodelMethod):
    """The other way without a heterogeneous method: one net small enough for all devices."""

    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Prefer the first channels."""
        return ordered_scores(server.model.submodel.graph)

    def compact(self, server: ServerState, rho: float) -> Submodel:
        """All levels take the same net home."""
        return super().compact(server, server.levels[-1])

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send everyone the net of the weakest."""
        weakest = replace(device, rho=server.levels[-1])
        assignment = super().assign(server, weakest, epochs, dice)
        return replace(assignment, device=device) if assignment else None

    def measured_in(self, server: ServerState, device: Device) -> LocalModel:
        """Measure statistics in the small net: nobody holds another."""
        return self.deliver(server)

    def deliver(self, server: ServerState) -> LocalModel:
        """Evaluate the small net as itself."""
        return self.take_home(server, 0.0)
