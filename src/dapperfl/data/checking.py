"""Pictures of somebody's own making, looked at before anything is trained on them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dapperfl.data.benchmark import Benchmark, Examples, Federation
from dapperfl.errors import DataError


def check_parts(found: Benchmark) -> None:
    """Refuse what could not be dealt out, or only a part of it.

    Test pictures are not dealt out; who may not look at them yet loads them all the same.

    Raises:
        DataError: names the first thing that is wrong, and where.
    """
    for name, domain in found.domains.items():
        if not isinstance(name, str):
            raise DataError(f"domain {name!r}: its name is a {type(name).__name__}, not a text")
        if wrong := _what_cannot_be_dealt(domain.train):
            raise DataError(f"training pictures of {name}: {wrong}")
    for what in ("mean", "std"):
        value: Any = getattr(found, what)
        if not isinstance(value, tuple | list):
            raise DataError(f"{what} = {value}: expected a tuple, a number for each channel")


def _what_cannot_be_dealt(examples: object) -> str | None:
    if not isinstance(examples, Examples):
        return f"expected Examples(images, labels), not a {type(examples).__name__}"
    for what in ("images", "labels"):
        value: Any = getattr(examples, what)
        if not isinstance(value, Tensor):
            return f"{what} are a {type(value).__name__}, not a tensor; torch.as_tensor makes one"
    images, labels = examples.images.shape[:1].numel(), examples.labels.shape[:1].numel()
    return None if images == labels else f"there are {images} images and {labels} labels"


def check_pictures(world: Federation) -> None:
    """Refuse what would come out wrong in training, or would not come out at all.

    Raises:
        DataError: names the first thing that is wrong, and where.
    """
    shapes: dict[tuple[int, ...], str] = {}
    for where, examples in _parts(world):
        if wrong := what_is_wrong(examples, len(world.classes)):
            raise DataError(f"{where}: {wrong}")
        shapes.setdefault(tuple(examples.images.shape[1:]), where)
    if len(shapes) > 1:
        sizes = ", ".join(f"{shape} in {where}" for shape, where in shapes.items())
        raise DataError(f"all pictures must have the same shape; there is {sizes}")
    channels = world.shape[0]
    if {len(world.mean), len(world.std)} - {1, channels}:
        raise DataError(f"mean and std need one number, or one for each of {channels} channels")
    if min(world.std) <= 0:
        raise DataError(f"std = {tuple(world.std)}: pictures are divided by it; it must be above 0")


def _parts(world: Federation) -> Iterator[tuple[str, Examples]]:
    homes = {device.id: device.domain for device in world.devices}
    for index, held in world.train.items():
        yield f"training pictures of {homes.get(index, index)}", held
    for name, examples in world.test.items():
        yield f"test pictures of {name}", examples


def what_is_wrong(examples: Examples, num_classes: int) -> str | None:
    """Say why examples are no pictures with labels; None where they are."""
    if wrong := _what_cannot_be_dealt(examples):
        return wrong
    images, labels = examples.images, examples.labels
    if images.dtype != torch.uint8 or images.dim() != 4:
        shape = tuple(images.shape)
        return f"images are {images.dtype} {shape}, not uint8 (n, channels, height, width)"
    if labels.is_floating_point() or labels.dim() != 1:
        return f"labels are {labels.dtype} {tuple(labels.shape)}, not integers, one an image"
    if len(labels) == 0:
        return "there are none"
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        return f"labels are not within 0..{num_classes - 1}"
    return None
