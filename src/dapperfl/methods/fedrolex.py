"""FedRolex: HeteroFL with a window that rolls over all channels (Alam et al., 2022)."""

from dataclasses import dataclass

import torch

from dapperfl.core.messages import LocalModel, ServerState
from dapperfl.core.scores import Scores, ordered_scores
from dapperfl.methods.heterofl import HeteroFL
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class FedRolex(HeteroFL):
    """In round t the window starts at channel t - 1, and wraps around the end of a layer."""

    step: int = setting(1, "channels by which the window advances in a round", Range(1))

    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Prefer the channels of this round's window."""
        return ordered_scores(server.model.submodel.graph, start=self.step * server.round_num)

    def deliver(self, server: ServerState) -> LocalModel:
        """Return the whole net: in time the window has been everywhere."""
        return server.model
