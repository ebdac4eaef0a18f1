"""How fast augmented batches come, beside a picture-by-picture pipeline.

Both sides run in turn in one process and on one core, on the same pictures; on a GPU both end
with the batch in the GPU's memory. What is timed is one client's round of the paper: five epochs.
"""

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader

from benchmarks.baselines.pictures import MEAN, STD, Pictures
from benchmarks.measure import Options, Row, at_least, medians
from benchmarks.synthetic import examples
from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples

BATCH, EPOCHS = 64, 5
GOALS = {"cpu": 10.0, "cuda": 100.0}


def ours(pictures: Examples, device: str) -> Callable[[], object]:
    """Return a round of this package's batches."""
    batches = Batches(pictures.to(device), batch_size=BATCH, mean=MEAN, std=STD, pad=4, flip=True)
    seeds = iter(range(1_000_000))

    def epochs() -> None:
        for _ in range(EPOCHS):
            for _ in batches.epoch(torch.Generator().manual_seed(next(seeds))):
                pass
        _finish(device)

    return epochs


def theirs(pictures: Examples, device: str) -> Callable[[], object]:
    """Return a round of the usual pipeline."""
    loader = DataLoader(Pictures(pictures, train=True), batch_size=BATCH, shuffle=True)

    def epochs() -> None:
        for _ in range(EPOCHS):
            for x, y in loader:
                x.to(device), y.to(device)
        _finish(device)

    return epochs


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(options: Options) -> Iterator[Row | str]:
    """Compare the two on every kind of device there is."""
    count, repeats = (128, 3) if options.quick else (732, 9)  # 732: an SVHN client
    pictures = examples(count, 32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the baseline has one core as well
    try:
        for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
            fast, slow = medians([ours(pictures, device), theirs(pictures, device)], repeats)
            batches = EPOCHS * -(-count // BATCH)
            name = f"{device}: augmented batches of {BATCH} from {count} pictures, over PIL's"
            goal = at_least(GOALS[device])
            yield Row(name, batches / fast, "1/s", batches / slow, slow / fast, goal)
    finally:
        torch.set_num_threads(threads)
