"""A training step on one thread, to be timed in several environments of a process.

python -m benchmarks.baselines.one_step NET WIDTH BATCH [contiguous]

What malloc does with freed memory is settled when a process starts: put what `dapperfl.environment`
wants before it, MALLOC_TRIM_THRESHOLD_=… and MALLOC_MMAP_THRESHOLD_=…, or nothing.
"""

import json
import sys

import torch

from benchmarks.measure import medians, with_threads
from benchmarks.rows.steps import training_step
from dapperfl import nets

REPEATS = 15


def main() -> None:
    """Print the median seconds."""
    name, width, batch, *layout = sys.argv[1:]
    torch.manual_seed(0)
    net = nets.build(name, num_classes=10, width=int(width))
    step = training_step(net, int(batch), turns=layout != ["contiguous"])
    sys.stdout.write(json.dumps(medians([with_threads(1, step)], REPEATS)[0]) + "\n")


if __name__ == "__main__":
    main()
