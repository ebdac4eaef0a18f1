"""Pictures of noise: for measurements in which only sizes matter."""

from pathlib import Path

import torch

from dapperfl.core.messages import Device
from dapperfl.data.benchmark import Benchmark, Domain, Examples, Federation

CLASSES = tuple("0123456789")
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
NOISE = "benchmarks.synthetic:load"  # as `data.benchmark` names it


def examples(count: int, size: int) -> Examples:
    """Return the same pictures every time they are asked for."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, size, size), generator=rng, dtype=torch.uint8)
    return Examples(images, torch.arange(count) % len(CLASSES))


def load(
    root: Path | None, *, devices: int = 50, each: int = 16, test: int = 16, size: int = 32
) -> Benchmark:
    """Make one domain in which protocol `iid` gives every device `each` pictures.

    Nothing is shifted or mirrored, so that a baseline need not do it either.
    """
    domain = Domain(examples(devices * each, size), examples(test, size), official_size=each)
    return Benchmark("noise", {"noise": domain}, CLASSES, MEAN, STD, fraction=1.0, pad=0)


def shared_federation(devices: int, each: int, size: int) -> Federation:
    """Give any number of devices the same pictures, stored once."""
    pictures = examples(each, size)
    return Federation(
        devices=tuple(Device(index, "noise", 0.0, each) for index in range(devices)),
        train=dict.fromkeys(range(devices), pictures),
        test={"noise": pictures},
        classes=CLASSES,
        mean=MEAN,
        std=STD,
        pad=0,
    )
