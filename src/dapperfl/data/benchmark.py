"""What a benchmark is (domains of labelled images) and what a federation is (who holds them)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dapperfl.core.messages import Device


@dataclass(frozen=True)
class Examples:
    """Labelled images as bytes; they become floats only batch by batch."""

    images: Tensor  # (n, channels, height, width), uint8
    labels: Tensor  # (n,), int64

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, index: Tensor) -> "Examples":
        """Return the examples at these positions, in this order."""
        return Examples(self.images[index], self.labels[index])

    def to(self, device: str) -> "Examples":
        """Return the same examples on another device."""
        return Examples(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Domain:
    """One kind of pictures: its training and its test set."""

    train: Examples
    test: Examples
    official_size: int  # of the official training split; the paper's fractions refer to it


@dataclass(frozen=True)
class Benchmark:
    """Several domains that share their labels. It says nothing of clients, fractions or nets."""

    name: str
    domains: Mapping[str, Domain]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of images scaled to [0, 1]
    std: tuple[float, ...]
    fraction: float = 0.2  # of the official size, for each client
    flip: bool = False  # whether a mirrored image keeps its label
    pad: int = 4  # pixels an image may be shifted in training
    repair_labels: bool = False  # whether a client's draw is mended where it lacks a class


@dataclass(frozen=True)
class Federation:
    """Who holds what: the devices, their training data, and the test set of every domain."""

    devices: tuple[Device, ...]
    train: Mapping[int, Examples]  # by device id
    test: Mapping[str, Examples]  # by domain
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = False
    pad: int = 4
    validation: Mapping[int, Examples] = field(default_factory=dict)  # kept aside, by device id
    reserve: Mapping[str, Examples] = field(default_factory=dict)  # held by nobody, by domain
    available: int = 0  # training pictures that the devices' domains have, held or not
    picture: tuple[int, ...] = ()  # channels, height, width; needed where no pictures are here

    @property
    def shape(self) -> tuple[int, ...]:
        """What one picture looks like: channels, height, width."""
        for examples in (*self.train.values(), *self.test.values()):
            return tuple(examples.images.shape[1:])
        return self.picture
