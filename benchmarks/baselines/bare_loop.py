"""Baseline (a): federated averaging as one writes it by hand, and nothing else.

The global weights are loaded into one net, client after client trains it, and a weighted sum is
kept. No submodels, no costs, no checks, no records.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dapperfl.data.benchmark import Examples

State = dict[str, Tensor]
BATCH, LR, MOMENTUM, WEIGHT_DECAY = 16, 0.01, 0.9, 1e-5
MEAN, STD = 0.5, 0.25


def normalised(images: Tensor) -> Tensor:
    """Turn bytes into floats of about zero mean and unit scale."""
    return images.div(255).sub_(MEAN).div_(STD)


def train(net: nn.Module, weights: State, own: Examples) -> State:
    """Train one epoch from the given weights; the result is only valid until the next call."""
    net.load_state_dict(weights)
    net.train()
    optimiser = torch.optim.SGD(
        net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    for part in torch.split(torch.randperm(len(own)), BATCH):
        loss = cross_entropy(net(normalised(own.images[part])), own.labels[part])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return net.state_dict()


def accuracy(net: nn.Module, weights: State, test: Examples) -> float:
    """Return the share of right answers."""
    net.load_state_dict(weights)
    net.eval()
    with torch.no_grad():
        return float((net(normalised(test.images)).argmax(1) == test.labels).float().mean())


def threads() -> list[int]:
    """Return the numbers of threads worth trying: on a busy machine one beats many."""
    return sorted({1, torch.get_num_threads()})


def rounds(net: nn.Module, clients: Sequence[Examples], test: Examples) -> Callable[[], float]:
    """Return a function that runs one round and returns the test accuracy."""
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    count = sum(len(own) for own in clients)

    def one_round() -> float:
        nonlocal weights
        mean = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        for own in clients:
            for name, tensor in train(net, weights, own).items():
                mean[name].add_(tensor, alpha=len(own) / count)
        weights = mean
        return accuracy(net, weights, test)

    return one_round
