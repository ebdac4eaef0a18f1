"""FedRolex: HeteroFL with a window that rolls over all channels (Alam et al., 2022)."""

from dataclasses import dataclass

import torch

from dapperfl.core.messages import ServerState
from dapperfl.core.scores import Scores, ordered_scores
from dapperfl.methods.base import NestedMethod, Statistics
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class FedRolex(NestedMethod):
    """In round t the window starts at channel t - 1, and wraps around the end of a layer."""

    step: int = setting(1, "channels by which the window advances in a round", Range(1))
    bn_statistics: Statistics = setting(
        "recalibrate", "static batch norm measures the global net's statistics; or average them"
    )

    @property
    def statistics(self) -> Statistics:
        """Static batch norm: the statistics phase after every round."""
        return self.bn_statistics

    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Prefer the channels of this round's window."""
        return ordered_scores(server.model.submodel.graph, start=self.step * server.round_num)
