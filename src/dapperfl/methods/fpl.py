"""FPL: federated prototypes (Huang et al., 2023).

Clients send the mean representation of each class; the server clusters them per class. Clients
then contrast samples with the cluster prototypes and draw them to the unbiased prototype.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from dapperfl.core.messages import Assignment, ClientUpdate, Device, Report, ServerState, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.prototypes import TAU, Gathered, class_means, contrast, prototypes, regression
from dapperfl.core.rng import Dice
from dapperfl.methods.base import MeasuringMethod
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class FPL(MeasuringMethod):
    """FedAvg with two terms that use prototypes; none in the first round."""

    tau: float = setting(TAU, "temperature of the contrast with cluster prototypes", Range(above=0))
    cluster_weight: float = setting(1.0, "weight of that contrast", Range(0))
    unbiased_weight: float = setting(1.0, "weight of the pull to the unbiased prototype", Range(0))
    unbiased_reduce: Literal["mean", "sum"] = setting(
        "mean", "over features: mean in the official code, sum in the paper"
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {"unbiased_reduce": "sum"},
    }

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send the prototypes along with the model."""
        return Assignment(server.round_num + 1, device, server.model, epochs, server.extra)

    def update(self, server: ServerState, updates: Iterable[ClientUpdate]) -> ServerState:
        """Average the weights, and cluster the clients' class means into prototypes."""
        seen = Gathered(updates)
        after = super().update(server, seen)
        return server.advance(after.weights, prototypes(seen.means))

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return cross-entropy, the contrast (CPCL) and the regression (UPCR)."""
        if not work.shared:
            return super().loss(net, batch, work)
        z, logits = net.split(batch.x)
        loss = cross_entropy(logits, batch.y)
        if self.cluster_weight:
            loss = loss + self.cluster_weight * contrast(z, batch.y, work.shared, self.tau)
        if self.unbiased_weight:
            pull = regression(z, batch.y, work.shared, self.unbiased_reduce)
            loss = loss + self.unbiased_weight * pull
        return loss

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Send the mean representation of each class, from a clean pass after training."""
        return Report(class_means(net, batches))
