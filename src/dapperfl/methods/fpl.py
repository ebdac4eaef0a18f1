"""FPL: federated prototypes (Huang et al., 2023).

Clients send the mean representation of each class; the server clusters them per class. Clients
then contrast samples with the cluster prototypes and draw them to the unbiased prototype.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dapperfl.core.messages import Assignment, ClientUpdate, Device, Report, ServerState, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import Dice
from dapperfl.core.state import State
from dapperfl.methods.base import MeasuringMethod
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class FPL(MeasuringMethod):
    """FedAvg with two terms that use prototypes; none in the first round."""

    tau: float = setting(
        0.02, "temperature of the contrast with cluster prototypes", Range(above=0)
    )
    cluster_weight: float = setting(1.0, "weight of that contrast", Range(0))
    unbiased_weight: float = setting(1.0, "weight of the pull to the unbiased prototype", Range(0))
    unbiased_reduce: Literal["mean", "sum"] = setting(
        "mean", "over features: mean in the official code, sum in the paper"
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {"unbiased_reduce": "sum"},
    }

    @property
    def needs_representation(self) -> bool:
        """Prototypes are means of representations, whatever the weights of the terms."""
        return True

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send the prototypes along with the model."""
        return Assignment(server.round_num + 1, device, server.model, epochs, server.extra)

    def update(self, server: ServerState, updates: Iterable[ClientUpdate]) -> ServerState:
        """Average the weights, and cluster the clients' class means into prototypes."""
        means: dict[int, State] = {}

        def collecting() -> Iterator[ClientUpdate]:
            for update in updates:
                means[update.device.id] = update.shared
                yield update

        after = super().update(server, collecting())
        in_order = [means[device] for device in sorted(means)]  # whoever answered first
        return server.advance(after.weights, prototypes(in_order))

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return cross-entropy, the contrast (CPCL) and the regression (UPCR)."""
        if "clusters" not in work.shared:
            return super().loss(net, batch, work)
        z, logits = net.split(batch.x)
        loss = cross_entropy(logits, batch.y)
        if self.cluster_weight:
            loss = loss + self.cluster_weight * self.contrast(z, batch.y, work.shared)
        if self.unbiased_weight:
            loss = loss + self.unbiased_weight * self.regression(z, batch.y, work.shared)
        return loss

    def contrast(self, z: Tensor, y: Tensor, shared: State) -> Tensor:
        """Return the batch mean of -log(share of the own class' clusters among all)."""
        similarities = normalize(z) @ normalize(shared["clusters"]).T / self.tau
        own = shared["cluster_labels"] == y[:, None]  # (batch, clusters)
        known = own.any(1)
        mine = similarities.masked_fill(~own, -torch.inf).where(known[:, None], similarities)
        return (similarities.logsumexp(1) - mine.logsumexp(1)).mean()

    def regression(self, z: Tensor, y: Tensor, shared: State) -> Tensor:
        """Return the batch mean of the squared distance to the unbiased prototype."""
        squares = (z - shared["unbiased"][y]).square() * shared["known"][y, None]
        return squares.mean() if self.unbiased_reduce == "mean" else squares.sum(1).mean()

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Send the mean representation of each class, from a clean pass after training."""
        sums: Tensor | None = None
        counts: Tensor | None = None
        net.module.eval()
        with torch.no_grad():
            for batch in batches:
                z, logits = net.split(batch.x)
                if sums is None or counts is None:
                    sums = z.new_zeros(logits.shape[1], z.shape[1])
                    counts = z.new_zeros(logits.shape[1])
                sums.index_add_(0, batch.y, z)
                counts.index_add_(0, batch.y, torch.ones_like(batch.y, dtype=z.dtype))
        assert sums is not None
        assert counts is not None
        return Report({"means": sums / counts.clamp_min(1)[:, None], "present": counts > 0})


def prototypes(means: list[State]) -> State:
    """Return the cluster prototypes of all classes, and the unbiased one of each.

    Nothing, as before the first round, where nobody says that any class is present.
    """
    stack = torch.stack([shared["means"] for shared in means])  # (clients, classes, features)
    present = torch.stack([shared["present"] for shared in means])
    clusters, labels = [], []
    unbiased = torch.zeros_like(stack[0])
    for label in range(stack.shape[1]):
        rows = stack[present[:, label], label]
        if not len(rows):
            continue
        found = finch(rows)
        parts = _centres(rows, found)
        clusters.append(parts)
        labels += [label] * len(parts)
        unbiased[label] = parts.mean(0)
    if not clusters:
        return {}
    return {
        "clusters": torch.cat(clusters),
        "cluster_labels": torch.tensor(labels, device=stack.device),
        "unbiased": unbiased,
        "known": present.any(0).to(stack.dtype),
    }


def finch(rows: Tensor) -> Tensor:
    """Return cluster numbers: first neighbours by cosine distance, merged until one is left.

    The coarsest partition with more than one cluster, or one cluster if the first is that already
    (Sarfraz et al., 2019).
    """
    best = _first_neighbours(rows)
    while len(centres := _centres(rows, best)) > 1:
        coarser = _first_neighbours(centres)[best]
        if int(coarser.max()) == 0:
            break
        best = coarser
    return best


def _centres(rows: Tensor, clusters: Tensor) -> Tensor:
    return torch.stack([rows[clusters == each].mean(0) for each in range(int(clusters.max()) + 1)])


def _first_neighbours(rows: Tensor) -> Tensor:
    """Return the connected components of rows linked to their nearest other row."""
    if len(rows) == 1:
        return torch.zeros(1, dtype=torch.int64)
    unit = normalize(rows.double())
    similarity = (unit @ unit.T).fill_diagonal_(-torch.inf)
    label = list(range(len(rows)))
    for here, there in enumerate(similarity.argmax(1).tolist()):
        old, new = label[there], label[here]
        label = [new if each == old else each for each in label]
    order = {old: number for number, old in enumerate(dict.fromkeys(label))}
    return torch.tensor([order[each] for each in label])
