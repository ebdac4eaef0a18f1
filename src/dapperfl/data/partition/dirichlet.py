"""Label skew: every device sees the classes of its domain in proportions of its own."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapperfl.core.rng import derive_seed
from dapperfl.data.benchmark import Benchmark, Domain
from dapperfl.data.partition.fleet import Fleet, Shares
from dapperfl.data.partition.homes import choose_homes, deal_at_home
from dapperfl.data.partition.portions import portions

ALPHA = 0.5  # unless told otherwise: most of a device's pictures are of a few classes
LEAST = 2  # batch normalisation cannot train on one picture


def dirichlet(benchmark: Benchmark, fleet: Fleet) -> Shares:
    """Split as `fair`, but let Dirichlet(alpha) choose the classes of every device."""
    alpha = ALPHA if fleet.settings.alpha is None else fleet.settings.alpha

    def deal(name: str, domain: Domain, residents: Sequence[int]) -> list[Tensor]:
        wanted = int(fleet.fraction * domain.official_size)
        sizes = portions(name, len(domain.train), wanted, len(residents), least=LEAST)
        piles = _piles(domain.train.labels, fleet.rng("samples", name))
        parts = []
        for index, size in zip(residents, sizes, strict=True):
            seed = derive_seed(fleet.seed, "partition", "classes", index)
            stock = np.array([len(pile) for pile in piles])
            counts = take(size, proportions(alpha, len(piles), seed), stock)
            taken = [pile[:count] for pile, count in zip(piles, counts, strict=True)]
            parts.append(torch.cat(taken))
            piles = [pile[count:] for pile, count in zip(piles, counts, strict=True)]
        return parts

    homes = choose_homes(benchmark, fleet)
    held = deal_at_home(benchmark, homes, deal)
    return Shares(homes, fleet.shuffled_levels(), held, flip=benchmark.flip)


def _piles(labels: Tensor, rng: torch.Generator) -> list[Tensor]:
    """Shuffle the positions of every class that is there."""
    order = torch.randperm(len(labels), generator=rng)
    return [order[labels[order] == label] for label in sorted(set(labels.tolist()))]


def proportions(alpha: float, num_classes: int, seed: int) -> NDArray[np.float64]:
    """Draw class proportions from Dirichlet(alpha), for any alpha above zero.

    Gamma(alpha) = Gamma(alpha + 1) · U^(1/alpha), kept as a logarithm: with a small alpha all the
    numbers themselves would be zero.
    """
    rng = np.random.default_rng(seed)
    logs = np.log(rng.standard_gamma(alpha + 1, num_classes))
    logs += np.log1p(-rng.random(num_classes)) / alpha
    weights = np.exp(logs - logs.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def take(size: int, shares: NDArray[np.float64], stock: NDArray[np.int64]) -> list[int]:
    """Choose how many pictures of each class to take: as near to the shares as the stock allows.

    What a used-up class cannot give comes from the others in the proportion of their own shares.
    """
    counts = np.zeros_like(stock)
    while (missing := size - int(counts.sum())) > 0:
        left = stock - counts
        weights = np.where(left > 0, shares, 0.0)
        if weights.sum() == 0:  # only classes of no share are left
            weights = left.astype(np.float64)
        ideal = missing * weights / weights.sum()
        more = np.floor(ideal).astype(np.int64)
        if (more <= left).all():  # single pictures go to the largest remainders
            remainders = np.where(more < left, ideal - more, -1.0)
            first = np.argsort(-remainders, kind="stable")[: missing - int(more.sum())]
            more[first] += 1
        counts += np.minimum(more, left)
    return [int(count) for count in counts]
