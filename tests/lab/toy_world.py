"""A benchmark of two domains so small that a round takes a fraction of a second."""

from dataclasses import replace
from pathlib import Path

import torch

from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Benchmark, Domain, Examples


def _examples(name: str, number: int, offset: int) -> Examples:
    rng = generator(0, "toy", name, number)
    labels = torch.randint(3, (number,), generator=rng)
    noise = torch.randint(60, (number, 3, 8, 8), generator=rng)
    bright = noise + offset
    for row, label in enumerate(labels.tolist()):
        bright[row, label] += 90  # the class is the brightest colour
    return Examples(bright.to(torch.uint8), labels)


def load(root: Path | None) -> Benchmark:
    """Make the benchmark; there is nothing to read."""
    domains = {
        name: Domain(_examples(name, 64, offset), _examples(name, 21, offset), 64)
        for name, offset in (("dark", 0), ("light", 80))
    }
    return Benchmark("toy", domains, ("red", "green", "blue"), (0.4,) * 3, (0.2,) * 3, fraction=0.3)


def load_sized(root: Path | None, *, number: int = 64) -> Benchmark:
    """Make it with another number of pictures."""
    domain = Domain(_examples("dark", number, 0), _examples("dark", 21, 0), number)
    return replace(load(root), domains={"dark": domain})


def load_rooted(root: Path | None, *, root_light: float = 0.4) -> Benchmark:
    """Make it with an option whose name begins like that of the folder."""
    return replace(load(root), mean=(root_light,) * 3)
