"""Batches from pictures that stay on their device as bytes: shuffle, crop, mirror, normalise.

It runs in the inner loop, so everything is done on whole batches; the result is what the usual
transforms do picture by picture (a test holds the two against each other).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dapperfl.core.net import Batch
from dapperfl.data.benchmark import Examples
from dapperfl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """All that is random in one epoch, drawn on the CPU so that a seed means the same anywhere."""

    order: Tensor  # (n,)
    offsets: Tensor  # (n, 2): row and column of each crop in the padded picture
    mirrored: Tensor  # (n,), bool


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
        draws = self._draw(generator)
        for part in self._parts():
            index = draws.order[part]
            images = self.examples.images.index_select(0, index)
            images = self._crop(images, draws.offsets[part], draws.mirrored[part])
            yield Batch(self._normalise(images), self.examples.labels[index])

    def clean(self) -> Iterator[Batch]:
        """Yield the examples once, in order and as they are."""
        for part in self._parts():
            yield Batch(self._normalise(self.examples.images[part]), self.examples.labels[part])

    def _draw(self, generator: torch.Generator) -> _Draws:
        """Draw a whole epoch's randomness and move it to where the images are."""
        device, num = self.examples.images.device, len(self.examples)
        order = torch.randperm(num, generator=generator)
        offsets = torch.randint(2 * self.pad + 1, (num, 2), generator=generator)
        mirrored = torch.rand(num, generator=generator) < (0.5 if self.flip else 0.0)
        return _Draws(
            order=order.to(device), offsets=offsets.to(device), mirrored=mirrored.to(device)
        )

    def _parts(self) -> Iterator[slice]:
        """Cut the examples into batches; a last one of a single example joins the one before.

        Batch normalisation cannot train on a single example.
        """
        num, start = len(self.examples), 0
        while start < num:
            stop = start + self.batch_size
            if self.batch_size > 1 and num - stop == 1:
                stop = num
            yield slice(start, stop)
            start = stop

    def _crop(self, images: Tensor, offsets: Tensor, mirrored: Tensor) -> Tensor:
        """Take from each zero-padded picture the crop at its own offset, mirrored or not.

        Both are one gather of pixels: where each pixel of the result comes from is worked out
        first, for all channels at once.
        """
        height, width = images.shape[-2:]
        padded = F.pad(images, [self.pad] * 4)
        rows = offsets[:, :1] + torch.arange(height, device=images.device)  # (n, height)
        columns = offsets[:, 1:] + torch.arange(width, device=images.device)  # (n, width)
        columns = torch.where(mirrored.unsqueeze(1), columns.flip(1), columns)
        spots = rows.unsqueeze(2) * padded.shape[-1] + columns.unsqueeze(1)  # (n, height, width)
        spots = spots.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, spots).view_as(images)

    def _normalise(self, images: Tensor) -> Tensor:
        """Turn bytes into floats of about zero mean and unit scale, channel by channel."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return images.float().div_(255).sub_(mean).div_(std)
