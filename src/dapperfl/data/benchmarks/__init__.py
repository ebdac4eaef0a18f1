"""One file per benchmark: the file's name is the benchmark's, its `load(root)` makes it."""

import importlib
import pkgutil
from pathlib import Path

from dapperfl.data.benchmark import Benchmark
from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean


def names() -> list[str]:
    """List the benchmarks, which are the modules of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str, root: Path | None) -> Benchmark:
    """Load a benchmark by name.

    Args:
        name: one of `names()`.
        root: the folder of prepared data; None for DAPPERFL_DATA or the user's cache folder.
    """
    if name not in names():
        raise ConfigError(f'unknown benchmark "{name}"{did_you_mean(name, names())}')
    module = importlib.import_module(f"{__name__}.{name}")
    benchmark: Benchmark = module.load(root)
    return benchmark
