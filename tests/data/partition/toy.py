"""Benchmarks whose pictures carry their own number, so that none can hide."""

from typing import Any

import torch

from dapperfl.data.benchmark import Benchmark, Domain, Examples, Federation
from dapperfl.data.partition import PartitionSettings, partition

RHOS = (0.0, 0.2, 0.4, 0.6, 0.8)


def benchmark(
    *sizes: int, official: int | None = None, labels: int = 10, **changes: Any
) -> Benchmark:
    """Make domains a, b, c… of these sizes."""
    named = dict(zip("abcdefgh", sizes, strict=False))
    return named_benchmark(
        {name: (size, size if official is None else official) for name, size in named.items()},
        labels=labels,
        **changes,
    )


def named_benchmark(
    sizes: dict[str, tuple[int, int]], *, labels: int = 10, **changes: Any
) -> Benchmark:
    """Make domains of these names, each of so many pictures and such an official size."""
    domains, first = {}, 0
    for name, (size, official) in sizes.items():
        places = torch.arange(first, first + size)
        pixels = torch.stack([places >> 16, places >> 8 & 255, places & 255], dim=1)
        train = Examples(pixels.to(torch.uint8).view(-1, 3, 1, 1), places % labels)
        test = Examples(torch.zeros(3, 3, 1, 1, dtype=torch.uint8), torch.arange(3))
        domains[name] = Domain(train, test, official)
        first += size
    facts: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.2,) * 3, "fraction": 0.1}
    return Benchmark(name="toy", domains=domains, classes=tuple("0123456789"), **(facts | changes))


def split(data: Benchmark, **changes: Any) -> Federation:
    """Split by the paper's protocol unless told otherwise."""
    asked: dict[str, Any] = {"devices": 10, "rhos": RHOS, "seed": 0}
    asked |= {name: changes.pop(name) for name in list(changes) if name in asked}
    return partition(data, PartitionSettings(**({"protocol": "paper"} | changes)), **asked)


def numbers(examples: Examples) -> list[int]:
    high, middle, low = examples.images.long().flatten(1).unbind(1)
    return ((high << 16) + (middle << 8) + low).tolist()


def same(one: Federation, other: Federation) -> bool:
    """Whether two federations are equal, down to the order of every picture."""
    if one.devices != other.devices or one.validation.keys() != other.validation.keys():
        return False
    parts = [(one.train, other.train), (one.validation, other.validation)]
    return all(numbers(mine[i]) == numbers(yours[i]) for mine, yours in parts for i in mine)
