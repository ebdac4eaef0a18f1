"""Accuracy of a model on every domain."""

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from dapperfl.core.messages import LocalModel
from dapperfl.core.net import Batch


def evaluate(
    net: nn.Module, model: LocalModel, domains: Mapping[str, Iterable[Batch]]
) -> dict[str, float]:
    """Return the share of right answers per domain, in percent."""
    small = model.submodel.shrink(net)
    small.load_state_dict(model.weights)
    return {domain: accuracy(small, batches) for domain, batches in domains.items()}


def accuracy(net: nn.Module, batches: Iterable[Batch]) -> float:
    """Return a net's share of right answers, in percent; the net is left in evaluation mode."""
    net.eval()
    right, count = torch.zeros((), dtype=torch.int64), 0
    with torch.no_grad():
        for batch in batches:
            hits = (net(batch.x).argmax(1) == batch.y).sum()
            right = right.to(hits.device) + hits
            count += len(batch.y)
    return 100 * int(right) / count
