"""FedDrop: federated dropout, one random submodel a round for all devices (Caldas et al., 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from dapperfl.core.messages import Assignment, Device, ServerState
from dapperfl.core.rng import Dice
from dapperfl.core.scores import Scores, random_scores
from dapperfl.core.submodel import Submodel
from dapperfl.methods.base import MeasuringMethod, SubmodelMethod
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class FedDrop(MeasuringMethod, SubmodelMethod):
    """Everyone trains the same random submodel; what it does not hold stays as it is."""

    rho: float | None = setting(
        None,
        'share of parameters dropped for all; "none": the largest rho of the fleet',
        Range(0, below=1),
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "release": {"rho": 0.6}}

    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Score channels at random, the same way for all devices of the round."""
        return random_scores(server.model.submodel.graph, rng)

    def ratio(self, server: ServerState) -> float:
        """Return the one ratio for all: small enough for the weakest, unless it is given."""
        return server.levels[-1] if self.rho is None else self.rho

    def compact(self, server: ServerState, rho: float) -> Submodel:
        """All levels take the same size home."""
        return super().compact(server, self.ratio(server))

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send the round's submodel, whatever the device's level."""
        alike = replace(device, rho=self.ratio(server))
        assignment = super().assign(server, alike, epochs, dice)
        return replace(assignment, device=device) if assignment else None
