"""Digits: MNIST, USPS, SVHN and SYN, the paper's benchmark of ten digits in four domains.

Sources, licences and how to cite: `dapperfl data list`. Each client holds 1 % of its domain.
"""

from pathlib import Path

from dapperfl.data.benchmark import Benchmark
from dapperfl.data.layout import Layout

LAYOUT = Layout(
    name="digits",
    domains=("mnist", "usps", "svhn", "syn"),
    classes=tuple("0123456789"),
    fraction=0.01,
    flip=False,  # a mirrored 2 is no digit; the `paper` protocol mirrors all the same
)


def load(root: Path | None) -> Benchmark:
    """Load the prepared files under a root; None for the default one."""
    return LAYOUT.load(root)
