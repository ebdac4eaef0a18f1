"""How important each channel is, and the submodel of the most important ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dapperfl.core.cost import keep_for_budget
from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel

if TYPE_CHECKING:
    from dapperfl.core.channels import ChannelGraph, Group, Scope


@dataclass(frozen=True, eq=False)
class Scores:
    """One number per channel of every group; the largest are kept."""

    graph: "ChannelGraph"
    values: Mapping["Group", Tensor] = field(repr=False)

    def top(self, rho: float, *, scope: "Scope" = "all", multiple: int = 8) -> Submodel:
        """Return the best-scored submodel with a share rho of the parameters removed."""
        counts = keep_for_budget(self.graph, rho, scope=scope, multiple=multiple)
        return self.keep(counts)

    def keep(self, counts: Mapping["Group", int]) -> Submodel:
        """Return the submodel with so many of the best-scored channels of each group."""
        return Submodel(self.graph, {g: self._best(g, n) for g, n in counts.items() if n < g.size})

    def _best(self, group: "Group", count: int) -> Tensor:
        """Pick whole bundles; of equal scores the first channels win."""
        rows = self.graph.bundles[group]
        order = self.values[group].cpu()[rows].sum(1).argsort(descending=True, stable=True)
        return rows[order[: count // group.bundle]].flatten().sort().values


def l1_scores(graph: "ChannelGraph", state: State) -> Scores:
    """Sum, per channel, the l1 norms of the convolution and linear rows that write it.

    Norm weights are not counted, so that a channel whose gate was averaged towards zero can
    come back.
    """
    total = torch.zeros(sum(group.size for group in graph.groups) + 1, dtype=torch.float64)
    rows, channels = _written(graph)
    if rows:  # a GPU is asked once, not once a layer
        norms = [
            torch.linalg.vector_norm(state[name], 1, others, dtype=torch.float64)
            for name, others in rows
        ]
        total.index_add_(0, channels, torch.cat(norms).detach().cpu())
    return Scores(graph, _by_group(graph, total))


@lru_cache(maxsize=16)  # it is asked for every client and round
def _written(graph: "ChannelGraph") -> tuple[list[tuple[str, list[int]]], Tensor]:
    """Return the weights that write channels, the axes they are summed over, and the channels."""
    last = sum(group.size for group in graph.groups)  # of what is never cut
    rows, channels = [], [torch.zeros(0, dtype=torch.int64)]
    for name, axis in graph.writers:
        ids = graph.axes[name][axis]
        if ids is not None:
            rows.append((name, [d for d in range(len(graph.shapes[name])) if d != axis]))
            channels.append(ids % (last + 1))
    return rows, torch.cat(channels)


def random_scores(graph: "ChannelGraph", rng: torch.Generator) -> Scores:
    """Score channels at random: every submodel of a size is equally likely."""
    count = sum(group.size for group in graph.groups) + 1
    return Scores(graph, _by_group(graph, torch.rand(count, generator=rng, dtype=torch.float64)))


def ordered_scores(graph: "ChannelGraph", start: int = 0) -> Scores:
    """Score channels by position: a prefix, or from `start` on a window that rolls over the end."""
    values = {
        group: -((torch.arange(group.size) - start) % group.size).to(torch.float64)
        for group in graph.groups
    }
    return Scores(graph, values)


def _by_group(graph: "ChannelGraph", total: Tensor) -> dict["Group", Tensor]:
    return {group: total[group.offset : group.offset + group.size] for group in graph.groups}
