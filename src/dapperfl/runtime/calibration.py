"""A net that came home: batch-norm statistics drawn towards the pictures of its own device.

The global model has the statistics of all devices together. Who takes a net home sees one kind of
pictures, and can tell the net what they look like; labels are not needed, and nothing is trained.
"""

from collections.abc import Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from dapperfl.core.submodel import copy_net
from dapperfl.errors import DataError, is_of_memory
from dapperfl.runtime.precision import Precision
from dapperfl.runtime.statistics import batch_moments, norm_layers, normalising_by_batch

AnyNet = TypeVar("AnyNet", bound=nn.Module)
PRIOR = 100  # pictures; chosen in docs/research-log.md, section 25


def calibrate(
    net: AnyNet,
    pictures: Tensor | Iterable[Tensor],
    prior: float = PRIOR,
    *,
    precision: Precision = "fp32",
) -> AnyNet:
    """Return a copy of a net with batch-norm statistics between its own and those of pictures.

    Args:
        net: Any net; one without batch norm stays as it is.
        pictures: One batch, or several; two pictures at least, without labels.
        prior: How many pictures the statistics of the net are worth: 0 forgets them, with as many
            new pictures the way is gone by half.
        precision: The number format it runs in.

    Raises:
        DataError: There are fewer than two pictures, or a net of this kind cannot run on them.
        ValueError: The prior is negative.
    """
    if not prior >= 0:
        raise ValueError(f"prior must be at least 0, not {prior}")
    own = cast(AnyNet, copy_net(net).eval())
    known = [layer for _, layer in norm_layers(own)]
    if not known:
        return own
    # numpy's arrays can be gone through as well, but picture by picture
    batches = [torch.as_tensor(pictures)] if hasattr(pictures, "__array__") else pictures
    measured, count = _moments(net, batches, precision)
    share = count / (count + prior)
    parts = torch.split(measured, [layer.num_features for layer in known], dim=1)
    for layer, (mean, second) in zip(known, parts, strict=True):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        variance = (second - mean.square()).clamp_min(0)
        layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), share)
        layer.running_var.lerp_(variance.to(layer.running_var.dtype), share)
    return own


def _moments(net: nn.Module, batches: Iterable[Tensor], precision: Precision) -> tuple[Tensor, int]:
    """Return what the norm layers of a net see in pictures, as `batch_moments`, and in how many."""
    looking = copy_net(net)
    normalising_by_batch(looking)
    place = next(looking.parameters()).device
    total, count = torch.zeros(()), 0
    for batch in batches:
        if not batch.isfinite().all():
            raise DataError("pictures have values that are not finite; leave those out")
        try:
            seen = batch_moments(looking, batch.to(place), precision) * len(batch)
        except ValueError as error:  # torch's word on a batch of one
            raise DataError(f"{error}; bring batches of two pictures at least") from error
        except RuntimeError as error:
            if is_of_memory(error):
                raise
            shape = f"{batch.dtype} {tuple(batch.shape)}"
            raise DataError(
                f"the net does not run on these pictures, {shape}: {error}; bring (n, channels, "
                "height, width) as in training, or of bytes for a net of pictures=True"
            ) from error
        total, count = total.to(place) + seen, count + len(batch)
    if count < 2:
        raise DataError(f"{count} pictures say nothing about what pictures look like; bring more")
    return total / count, count
