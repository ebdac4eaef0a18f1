"""Measure augmented batches per second beside a picture-by-picture pipeline.

    python benchmarks/batches.py [--quick] [--out FILE]

The baseline is what a usual project does: Pillow pads, crops and mirrors each picture, which then
becomes a tensor, is normalised, and is collated by a DataLoader. Both sides run in turn in this
one process and on one core, on the same pictures; on a GPU both end with the batch in the GPU's
memory. What is timed is the work of one client in one round of the paper: five epochs.
"""

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from bench import Row, median_seconds
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dapperfl import __version__
from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, PAD, EPOCHS = 64, 4, 5
TARGETS = {"cpu": 10.0, "cuda": 100.0}


class OneByOne(Dataset[tuple[Tensor, int]]):
    """Pictures that are augmented one at a time, when they are asked for."""

    def __init__(self, examples: Examples) -> None:
        arrays = examples.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.pictures = [Image.fromarray(array) for array in arrays]
        self.labels = examples.labels.tolist()
        self.mean, self.std = (torch.tensor(each).view(-1, 1, 1) for each in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.pictures[index]
        width, height = picture.size
        left, top = torch.randint(2 * PAD + 1, (2,)).tolist()
        padded = ImageOps.expand(picture, border=PAD, fill=0)
        crop = padded.crop((left, top, left + width, top + height))
        if torch.rand(()) < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        bytes_ = torch.from_numpy(np.array(crop)).permute(2, 0, 1).contiguous()
        return bytes_.float().div(255).sub(self.mean).div(self.std), self.labels[index]


def ours(examples: Examples, device: str) -> Callable[[], object]:
    """Return a round of this package's batches."""
    batches = Batches(examples.to(device), batch_size=BATCH, mean=MEAN, std=STD, pad=PAD, flip=True)
    seeds = iter(range(1_000_000))

    def epochs() -> None:
        for _ in range(EPOCHS):
            for _ in batches.epoch(torch.Generator().manual_seed(next(seeds))):
                pass
        _finish(device)

    return epochs


def theirs(examples: Examples, device: str) -> Callable[[], object]:
    """Return a round of the usual pipeline."""
    loader = DataLoader(OneByOne(examples), batch_size=BATCH, shuffle=True)

    def epochs() -> None:
        for _ in range(EPOCHS):
            for x, y in loader:
                x.to(device), y.to(device)
        _finish(device)

    return epochs


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def bench(device: str, count: int, repeats: int) -> Row:
    """Compare the two on one device."""
    examples = Examples(
        torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (count,))
    )
    fast, slow = median_seconds([ours(examples, device), theirs(examples, device)], repeats)
    batches = EPOCHS * -(-count // BATCH)
    ratio, target = slow / fast, TARGETS[device]
    name = f"augmented batches of {BATCH} from {count} pictures on {device}"
    return Row(name, batches / fast, "1/s", batches / slow, ratio, target, ratio >= target)


def main() -> None:
    """Measure on every kind of device there is, and write the rows down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few pictures and few repeats")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the baseline has one core as well
    count, repeats = (128, 3) if options.quick else (732, 15)  # 732: an SVHN client
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    rows = [bench(device, count, repeats) for device in devices]
    for row in rows:
        verdict = "met" if row.met else "MISSED"
        print(f"{row.name}: {row.value:.0f} a second, {row.ratio:.1f} times as fast, {verdict}")  # noqa: T201
    if options.out:
        facts = {"dapperfl": __version__, "torch": torch.__version__}
        facts |= {"machine": platform.machine(), "threads": torch.get_num_threads()}
        text = json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
