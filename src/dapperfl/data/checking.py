"""Pictures of somebody's own making, looked at before anything is trained on them."""

import logging
from collections.abc import Iterator
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from dapperfl.data.benchmark import Benchmark, Examples, Federation
from dapperfl.data.facts import check_domains
from dapperfl.data.pictures.tree import some
from dapperfl.errors import DataError

log = logging.getLogger(__name__)

_CHANNELS_LAST = (
    "if they are (n, height, width, channels), images.permute(0, 3, 1, 2) makes (n, channels, "
    "height, width) of them"
)


def check_parts(found: Benchmark) -> None:
    """Refuse what could not be dealt out, or only a part of it.

    Test pictures are not dealt out; who may not look at them yet loads them all the same.

    Raises:
        DataError: names the first thing that is wrong, and where.
    """
    check_domains(found.domains)
    for name, domain in found.domains.items():
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
            return f"{what} are a {type(value).__name__}, not a tensor; {_tensor_of(what, value)}"
        if value.layout != torch.strided or value.is_meta:
            return f"{what} are a sparse tensor, or have no data; use to_dense()"
    images, labels = examples.images.shape[:1].numel(), examples.labels.shape[:1].numel()
    return None if images == labels else f"there are {images} images and {labels} labels"


def _tensor_of(what: str, value: Any) -> str:
    """Say how a tensor is made of something; torch makes none of names."""
    try:
        torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        if what == "labels":
            return "torch.tensor([classes.index(name) for name in labels]) makes one of names"
    return "torch.as_tensor makes one"


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
    _check_scale(world)
    _tell_odd_shape(world)
    _tell_untaught(world)


def _check_scale(world: Federation) -> None:
    """Refuse means and deviations that pictures cannot have."""
    channels = world.shape[0]
    if odd := {len(world.mean), len(world.std)} - {1, channels}:
        last = f"; {_CHANNELS_LAST}" if odd == {world.shape[-1]} else ""
        raise DataError(
            f"mean and std need one number, or one for each of {channels} channels: pictures are "
            f"(channels, height, width) = {world.shape}{last}"
        )
    for what, values in (("mean", world.mean), ("std", world.std)):
        if not all(map(isfinite, values)):
            raise DataError(f"{what} = {tuple(values)}: expected finite numbers")
    if min(world.std) <= 0:
        raise DataError(f"std = {tuple(world.std)}: pictures are divided by it; it must be above 0")
    if max(world.mean) > 1:
        raise DataError(
            f"mean = {tuple(world.mean)}: bytes are scaled to [0, 1] before it is taken off; "
            "divide mean and std by 255"
        )


def _tell_odd_shape(world: Federation) -> None:
    """Say what trains, but hardly as it was meant."""
    channels, height, width = world.shape
    if channels == height > 4 and width in (1, 3, 4):
        log.warning(
            "pictures have %d channels of %d × %d pixels: %s",
            *(channels, height, width, _CHANNELS_LAST),
        )
    if world.train and world.pad >= min(height, width):
        log.warning(
            "pad = %d: training shifts pictures by up to so many pixels, and some of %d × %d are "
            "out of sight then, all zero; give Benchmark(pad=0) if they are to stay where they are",
            *(world.pad, height, width),
        )


def _tell_untaught(world: Federation) -> None:
    """Name the classes that nobody can learn, although accuracy asks for them."""
    if not world.train or not world.test:
        return
    taught, asked = (
        set(torch.cat([part.labels for part in parts.values()]).tolist())
        for parts in (world.train, world.test)
    )
    if lost := sorted(asked - taught):
        log.warning(
            "no device trains on pictures of %s, which tests ask for; give devices more "
            "(data.fraction), or have more of them (fleet.devices)",
            some([world.classes[label] for label in lost]),
        )


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
        return (
            f"images are {images.dtype} {shape}, not uint8 (n, channels, height, width); scale "
            "values to whole numbers from 0 to 255, and view series as (n, channels, 1, length)"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dim() != 1:
        more = "; labels.argmax(1) makes them of one-hot rows" if labels.dim() == 2 else ""
        return f"labels are {labels.dtype} {tuple(labels.shape)}, not integers, one an image{more}"
    if len(labels) == 0:
        return "there are none"
    low, high = (int(end) for end in labels.long().aminmax())
    if low < 0 or high >= num_classes:
        return (
            f"labels are not within 0..{num_classes - 1}: they are from {low} to {high}; a label "
            "is the place of its name in classes, counted from 0"
        )
    return None
