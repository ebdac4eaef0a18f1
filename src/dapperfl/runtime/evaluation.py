"""Accuracy of a net on every domain."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from dapperfl.core.net import Batch
from dapperfl.runtime.precision import Precision, autocast


def evaluate(
    net: Callable[[Tensor], Tensor],
    domains: Mapping[str, Iterable[Batch]],
    precision: Precision = "fp32",
) -> dict[str, float]:
    """Return the share of right answers per domain, in percent, of a net in evaluation mode.

    Raises:
        ValueError: If a domain has no examples.
    """
    hits = {domain: _hits(net, batches, precision) for domain, batches in domains.items()}
    if not hits:
        return {}
    right = torch.stack([each.sum() for each in hits.values()]).tolist()  # the one wait of all
    return {
        domain: 100 * count / each.numel()
        for (domain, each), count in zip(hits.items(), right, strict=True)
    }


def _hits(
    net: Callable[[Tensor], Tensor], batches: Iterable[Batch], precision: Precision
) -> Tensor:
    """Return which examples are answered right, in order."""
    found = []
    with torch.no_grad():
        for batch in batches:
            with autocast(precision, batch.x.device):
                found.append(net(batch.x).argmax(1) == batch.y)
    if not found:
        raise ValueError("there is nothing to evaluate on")
    return torch.cat(found)
