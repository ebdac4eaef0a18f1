"""Batches from pictures that stay on their device as bytes: shuffle, crop, mirror, normalise.

It runs in the inner loop, so everything is done on whole batches; the result is what the usual
transforms do picture by picture (a test holds the two against each other).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dapperfl.core.net import Batch
from dapperfl.data.benchmark import Examples
from dapperfl.errors import ConfigError

# Launching a kernel takes a GPU longer than running it on one batch, so it prepares many batches
# at a time and hands them out one by one. A CPU is fastest when a batch fits its cache.
AHEAD: Mapping[str, int] = {"cpu": 1, "cuda": 4096}  # examples, by kind of device


@dataclass(frozen=True)
class Batches:
    """The examples of one client or one test set, ready to be gone through in batches."""

    examples: Examples
    batch_size: int = 64
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad: int = 4  # zeros around a picture before a crop of its own size is taken
    flip: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"train.batch_size = {self.batch_size}: it must be at least 1")

    @property
    def num_samples(self) -> int:
        """How many examples one epoch goes through."""
        return len(self.examples)

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        """Yield the examples once, shuffled and augmented.

        Args:
            generator: a CPU generator; it alone decides order, crops and mirroring.
        """
        labels, begins = self._draw(generator)
        sizes, start = self._sizes(), 0
        step = max(AHEAD.get(begins.device.type, 1) // self.batch_size, 1)
        for first in range(0, len(sizes), step):
            together = sizes[first : first + step]
            here = slice(start, start + sum(together))
            images = self._normalise(self._crop(begins[here]))
            yield from map(
                Batch, torch.split(images, together), torch.split(labels[here], together)
            )
            start = here.stop

    def clean(self, batch_size: int | None = None) -> Iterator[Batch]:
        """Yield the examples once, in order and as they are."""
        sizes = self._sizes(batch_size)
        images = torch.split(self.examples.images, sizes)
        labels = torch.split(self.examples.labels.long(), sizes)  # as an epoch has them
        for part, right in zip(images, labels, strict=True):
            yield Batch(self._normalise(part), right)

    def _draw(self, generator: torch.Generator) -> Tensor:
        """Draw an epoch: the labels in their order, and the bytes where the crops begin: (2, n).

        This happens on the CPU, so that a seed means the same anywhere, and in numpy, which is
        much quicker than torch on so few numbers.
        """
        num, channels, height, width = self.examples.images.shape
        order = torch.randperm(num, generator=generator).numpy()
        offsets = torch.randint(2 * self.pad + 1, (num, 2), generator=generator).numpy()
        chance = torch.rand(num, generator=generator).numpy()
        rows, columns = offsets[:, 0], offsets[:, 1]
        device = self.examples.images.device
        pinned = device.type == "cuda"  # nobody waits for the GPU
        drawn = torch.empty(2, num, dtype=torch.int64, pin_memory=pinned)
        labels, begins = drawn.numpy()
        labels[:] = self._labels[order]
        begins[:] = order
        if self.flip:
            mirrored = chance < 0.5
            begins += num * mirrored
            # A mirrored crop is a crop of the mirrored picture, as far from its other edge.
            columns = np.where(mirrored, 2 * self.pad - columns, columns)
        begins *= channels * (height + 2 * self.pad)
        begins += rows
        begins *= width + 2 * self.pad
        begins += columns
        return drawn.to(device, non_blocking=pinned)

    def _sizes(self, batch_size: int | None = None) -> list[int]:
        """Cut the examples into batches; a last one of a single example joins the one before.

        Batch normalisation cannot train on a single example.
        """
        size = batch_size or self.batch_size
        full, rest = divmod(len(self.examples), size)
        sizes = [size] * full + [rest] * (rest > 0)
        if rest == 1 and full:
            sizes[-2:] = [size + 1]
        return sizes

    @cached_property
    def _labels(self) -> NDArray[np.int64]:
        """The labels where an epoch is drawn."""
        labels: NDArray[np.int64] = self.examples.labels.cpu().numpy()
        return labels

    @cached_property
    def _sheet(self) -> Tensor:
        """All bytes of the padded pictures, and of the mirrored ones after them: (bytes,)."""
        padded = F.pad(self.examples.images, [self.pad] * 4)
        return torch.cat([padded, padded.flip(-1)] if self.flip else [padded]).flatten()

    @cached_property
    def _lines(self) -> Tensor:
        """How far after the first line of a crop each of its lines begins: (channels, height)."""
        _, channels, height, width = self.examples.images.shape
        high, wide = height + 2 * self.pad, width + 2 * self.pad
        device = self.examples.images.device
        lines = torch.arange(height, device=device) * wide
        return lines + torch.arange(channels, device=device).unsqueeze(1) * high * wide

    def _crop(self, begins: Tensor) -> Tensor:
        """Copy the crops that begin at these bytes, line by line: (n, channels, height, width)."""
        _, channels, height, width = self.examples.images.shape
        windows = self._sheet.as_strided((len(self._sheet) - width + 1, width), (1, 1))
        lines = begins.view(-1, 1, 1) + self._lines  # (n, channels, height)
        return windows.index_select(0, lines.flatten()).view(-1, channels, height, width)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each channel, where the images are."""
        device = self.examples.images.device
        mean, std = torch.tensor(self.mean, device=device), torch.tensor(self.std, device=device)
        return mean.view(-1, 1, 1), std.view(-1, 1, 1)

    def _normalise(self, images: Tensor) -> Tensor:
        """Turn bytes into floats of about zero mean and unit scale, channel by channel."""
        mean, std = self._scale
        return images.div(255).sub_(mean).div_(std)
