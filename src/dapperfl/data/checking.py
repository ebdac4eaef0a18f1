"""Pictures of somebody's own making, looked at before anything is trained on them."""

from collections.abc import Iterator

import torch

from dapperfl.data.benchmark import Examples, Federation
from dapperfl.errors import DataError


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
    images, labels = examples.images, examples.labels
    if images.dtype != torch.uint8 or images.dim() != 4:
        shape = tuple(images.shape)
        return f"images are {images.dtype} {shape}, not uint8 (n, channels, height, width)"
    if labels.is_floating_point() or labels.shape != images.shape[:1]:
        return f"labels are {labels.dtype} {tuple(labels.shape)}, not integers, one an image"
    if len(labels) == 0:
        return "there are none"
    if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        return f"labels are not within 0..{num_classes - 1}"
    return None
