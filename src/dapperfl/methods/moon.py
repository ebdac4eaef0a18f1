"""MOON: pull z to the global model's, push it from one's own previous (Li et al., 2021)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from dapperfl.core.messages import Report, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.state import snapshot
from dapperfl.methods.base import MeasuringMethod
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class Moon(MeasuringMethod):
    """FedAvg with a contrast between models; a client remembers the model it trained last."""

    mu: float = setting(1.0, "weight of the contrast", Range(0))
    tau: float = setting(0.5, "temperature of the contrast", Range(above=0))

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "release": {"mu": 5.0}}

    @property
    def needs_representation(self) -> bool:
        """The contrast is between representations."""
        return self.mu > 0

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return cross-entropy plus mu times the contrast; none in a client's first round."""
        if self.mu == 0 or not work.memory:
            return super().loss(net, batch, work)
        # Each net gets pictures of its own: some write into their input, such as x.sub_(mean).
        z, logits = net.split(batch.x.clone())
        to_global = net.at(work.model.weights, batch.x.clone())
        to_previous = net.at(work.memory, batch.x.clone())
        return cross_entropy(logits, batch.y) + self.mu * self.contrast(z, to_global, to_previous)

    def contrast(self, z: Tensor, to_global: Tensor, to_previous: Tensor) -> Tensor:
        """Return -log of the share of the global model in the two similarities."""
        pair = [cosine_similarity(z, to_global), cosine_similarity(z, to_previous)]
        similarities = torch.stack(pair, 1) / self.tau  # (batch, 2)
        return cross_entropy(similarities, similarities.new_zeros(len(z), dtype=torch.int64))

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Keep the model as it is at the end of the round."""
        return Report(memory=snapshot(net.module))

    def extra_forwards(self, work: Work) -> int:
        """Two frozen nets look at every batch once there is a previous model."""
        return 2 if self.mu and work.memory else 0
