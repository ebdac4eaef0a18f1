"""Office-Caltech-10: ten kinds of objects in four domains, the paper's second benchmark.

Sources, licences and how to cite: `dapperfl data list`. Each client holds 20 % of its domain.
"""

from pathlib import Path

from dapperfl.data.benchmark import Benchmark
from dapperfl.data.layout import Layout

LAYOUT = Layout(
    name="office_caltech",
    domains=("caltech", "amazon", "webcam", "dslr"),
    classes=(
        "backpack",
        "bike",
        "calculator",
        "headphones",
        "keyboard",
        "laptop",
        "monitor",
        "mouse",
        "mug",
        "projector",
    ),
    fraction=0.2,
    flip=True,
    repair_labels=True,
)


def load(root: Path | None) -> Benchmark:
    """Load the prepared files under a root; None for the default one."""
    return LAYOUT.load(root)
