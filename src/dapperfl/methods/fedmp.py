"""FedMP: the server prunes the global model for each device, then adds the rest back (2022)."""

from dataclasses import dataclass

import torch

from dapperfl.core.messages import ServerState
from dapperfl.core.scores import Scores, l1_scores
from dapperfl.methods.base import MeasuringMethod, SubmodelMethod


@dataclass(frozen=True, kw_only=True)
class FedMP(MeasuringMethod, SubmodelMethod):
    """Masks from the global weights, fixed ratios; the residual model is the recovery of Eq. 6."""

    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Score channels by their l1 norm in the global model."""
        return l1_scores(server.model.submodel.graph, server.weights)
