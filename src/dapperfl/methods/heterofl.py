"""HeteroFL: prefix-width submodels, averaged over those who hold an entry (Diao et al., 2021)."""

from dataclasses import dataclass

import torch

from dapperfl.core.messages import ServerState
from dapperfl.core.scores import Scores, ordered_scores
from dapperfl.methods.base import MeasuringMethod, NestedMethod, Statistics
from dapperfl.settings import setting


@dataclass(frozen=True, kw_only=True)
class HeteroFL(MeasuringMethod, NestedMethod):
    """A device holds the first channels of every layer; batch norm is static (measured anew)."""

    bn_statistics: Statistics = setting(
        "recalibrate", "static batch norm measures the global net's statistics; or average them"
    )

    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Prefer the first channels."""
        return ordered_scores(server.model.submodel.graph)
