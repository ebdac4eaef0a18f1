"""The toy benchmark with test sets that nobody may look at."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapperfl.data.benchmark import Benchmark, Examples
from tests.lab import toy_world


@dataclass(frozen=True)
class Poison(Examples):
    """Raises whatever is asked of it."""

    images: Any = None
    labels: Any = None

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"somebody looked at the test set: {name}")

    def __len__(self) -> int:
        raise AssertionError("somebody counted the test set")


def load(root: Path | None) -> Benchmark:
    """Make the benchmark, poisoned."""
    clean = toy_world.load(root)
    domains = {name: replace(each, test=Poison()) for name, each in clean.domains.items()}
    return replace(clean, domains=domains)


def load_small(root: Path | None) -> Benchmark:
    """Make it with so few pictures that nothing can be kept aside."""
    clean = load(root)
    domains = {
        name: replace(each, train=Examples(each.train.images[:4], each.train.labels[:4]))
        for name, each in clean.domains.items()
    }
    return replace(clean, domains=domains)
