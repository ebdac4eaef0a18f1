"""Prototypes of classes: the mean representations that devices show each other, clustered.

Devices send the mean representation of each class; the server clusters them per class, so that
each kind of domain counts once. Training then contrasts an example with all clusters, and draws
it to the unbiased prototype of its class (Huang et al., "Rethinking federated learning with domain
shift: a prototype view", 2023).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dapperfl.core.messages import ClientUpdate
from dapperfl.core.net import Batch, Net
from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel

TAU = 0.02  # the temperature that the authors found
_WIDE = ("clusters", "unbiased")  # what has a column for each feature


def class_means(net: Net, batches: Iterable[Batch]) -> State:
    """Return the mean representation of each class in a clean pass, and which classes there are."""
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
    return {"means": sums / counts.clamp_min(1)[:, None], "present": counts > 0}


def contrast(z: Tensor, y: Tensor, shared: State, tau: float = TAU) -> Tensor:
    """Return the batch mean of -log(share of the own class' clusters among all)."""
    similarities = normalize(z) @ normalize(shared["clusters"]).T / tau
    own = shared["cluster_labels"] == y[:, None]  # (batch, clusters)
    known = own.any(1)
    mine = similarities.masked_fill(~own, -torch.inf).where(known[:, None], similarities)
    return (similarities.logsumexp(1) - mine.logsumexp(1)).mean()


def regression(
    z: Tensor, y: Tensor, shared: State, reduce: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Return the batch mean of the squared distance to the unbiased prototype."""
    squares = (z - shared["unbiased"][y]).square() * shared["known"][y, None]
    return squares.mean() if reduce == "mean" else squares.sum(1).mean()


def prototypes(means: Sequence[Mapping[str, Tensor]]) -> State:
    """Return the cluster prototypes of all classes, and the unbiased one of each."""
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
    return {
        "clusters": torch.cat(clusters),
        "cluster_labels": torch.tensor(labels, device=stack.device),
        "unbiased": unbiased,
        "known": present.any(0).to(stack.dtype),
    }


class Gathered:
    """Passes updates on, and keeps the class means that came with them."""

    def __init__(self, updates: Iterable[ClientUpdate]) -> None:
        self.updates = updates
        self.means: list[State] = []

    def __iter__(self) -> Iterator[ClientUpdate]:
        for update in self.updates:
            self.means.append(widened(update.shared, update.model.submodel))
            yield update


def narrowed(shared: State, submodel: Submodel) -> State:
    """Cut prototypes of the full net to the features that a submodel has."""
    kept = _features(submodel)
    if kept is None:
        return shared
    return {
        name: tensor.index_select(1, kept.to(tensor.device)) if name in _WIDE else tensor
        for name, tensor in shared.items()
    }


def widened(means: State, submodel: Submodel) -> State:
    """Return a submodel's class means among all features of the full net; it is silent in others.

    A feature that was pruned is zero in that net, and no smaller for being left out.
    """
    kept, small = _features(submodel), means["means"]
    if kept is None:
        return means
    columns = submodel.graph.shapes[_head_of(submodel)][1]
    full = small.new_zeros(len(small), columns).index_copy_(1, kept.to(small.device), small)
    return {**means, "means": full}


def _head_of(submodel: Submodel) -> str:
    return f"{submodel.graph.head}.weight"


def _features(submodel: Submodel) -> Tensor | None:
    """Return which features of the representation a submodel keeps; None for all of them."""
    return dict(submodel.indices.get(_head_of(submodel), ())).get(1)


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
