"""Channel rules of operations that move, pool or fold entries; `taking` has those that pick some.

What is done to a tensor is done to its shadow. Channels that a fixed size or position in code
would cut apart are pinned and stay full.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dapperfl.core.calls import Call, tensors_in
from dapperfl.core.elementwise import first_shadow, multiplies, tied_along
from dapperfl.core.products import count_products
from dapperfl.core.shadows import (
    NO_CHANNEL,
    blank,
    distinct,
    distinct_pairs,
    slim,
    spread,
    varies,
)
from dapperfl.core.tracing import Rules, Trace

RULES = Rules()


def replay(call: Call, shadow_of: Callable[[Tensor], Tensor | None]) -> Any:
    """Run a call on the shadows of its operands; tensors without one hold no channels."""

    def shadowed(value: Tensor) -> Tensor:
        shadow = shadow_of(value)
        if shadow is None and not value.is_floating_point():
            return value.cpu()  # an index
        shadow = blank(value.shape) if shadow is None else shadow
        return shadow.expand(shadow.shape)  # its own object, which in-place calls may reshape

    return call.again(shadowed)


# --- moving ----------------------------------------------------------------------------------


@RULES.on(
    "permute transpose t T mT H mH movedim squeeze unsqueeze expand expand_as broadcast_to "
    "repeat tile repeat_interleave hstack vstack dstack column_stack atleast_2d atleast_3d"
)
def moves(trace: Trace, call: Call) -> Tensor:
    """Move or repeat entries; nothing is lost and nothing is cut by a fixed size."""
    result: Tensor = replay(call, trace.shadow)
    return result


@RULES.on("stack")
def stacks(trace: Trace, call: Call) -> Tensor:
    """Put tensors of one shape on a new axis."""
    shadows = _shadows_of(trace, call)
    side_by_side(trace, call, shadows)
    return torch.stack(_thin(shadows), call.arg(1, "dim", 0)).expand(call.out.shape)


@RULES.on("cat")
def concatenates(trace: Trace, call: Call) -> Tensor:
    """Put channels side by side, on axes that change only; concatenation makes no stream."""
    axis = call.arg(1, "dim", call.kwargs.get("axis", 0)) % call.out.dim()
    shadows = _shadows_of(trace, call)
    if not any(varies(shadow, axis) for shadow in shadows):
        side_by_side(trace, call, [shadow.narrow(axis, 0, 1) for shadow in shadows])
    return torch.cat(_thin(shadows, but=axis), axis).expand(call.out.shape)


def _thin(shadows: list[Tensor], but: int | None = None) -> list[Tensor]:
    """Cut the axes along which no shadow changes down to size 1, but for one."""
    for axis in range(shadows[0].dim()):
        if axis != but and not any(varies(shadow, axis) for shadow in shadows):
            shadows = [shadow.narrow(axis, 0, 1) for shadow in shadows]
    return shadows


def _shadows_of(trace: Trace, call: Call) -> list[Tensor]:
    """Return the shadows of the tensors that a call joins."""
    tensors = list(tensors_in(call.arg(0, "tensors")))
    known = [trace.shadow(tensor) for tensor in tensors]
    pairs = zip(tensors, known, strict=True)
    return [blank(tensor.shape) if shadow is None else shadow for tensor, shadow in pairs]


def side_by_side(trace: Trace, call: Call, shadows: list[Tensor]) -> None:
    """Make tensors that are joined on another axis lose the same positions."""
    for shadow in shadows[1:]:
        rows = torch.tensor(list(distinct_pairs(shadows[0], shadow))).reshape(-1, 2)
        trace.bundle(rows, f"beside an uncut channel in {call}")


@RULES.on("view reshape flatten unflatten view_as reshape_as ravel")
def reshapes(trace: Trace, call: Call) -> Tensor:
    """Merge axes freely; an axis of channels that is split in two loses the same of each block."""
    shadow, shape = first_shadow(trace, call), call.out.shape
    result = shadow.reshape(shape)
    for old, new in _blocks(shadow.shape, shape):
        axes = [axis for axis in new if varies(result, axis)]
        if len(axes) == 1:
            line = result[tuple(slice(None) if d == axes[0] else 0 for d in range(len(shape)))]
            trace.guess(call, len(line), line)
        elif axes:
            long = [axis for axis in old if shadow.shape[axis] > 1]
            if len(long) == 1:
                channels = trace.along(shadow, long[0], call)
                _splits_axis(trace, call, channels, [axis for axis in new if shape[axis] > 1])
            else:
                trace.pin(shadow, f"split into several axes by {call}")
    return result


def _splits_axis(trace: Trace, call: Call, channels: Tensor, pieces: list[int]) -> None:
    """Split an axis of channels: one piece follows a cut, the others are numbers in the code.

    A channel shuffle begins with (groups, -1), maxout with (-1, 2). Where none is -1 it is the
    longest, but not the first of two if the layer holds this one, as it does the number of groups.
    """
    sizes = [call.out.shape[axis] for axis in pieces]
    held = {value for value in vars(call.module).values() if isinstance(value, int)}
    in_groups = len(sizes) == 2 and sizes[0] in held and sizes[1] not in held
    able = sizes[1:] if in_groups else sizes
    free = _free_axis(call)
    last = max(i for i, size in enumerate(sizes) if size == max(able))
    follows = pieces.index(free) if free in pieces else last
    rows = channels.reshape(sizes).movedim(follows, 0).flatten(1)
    trace.bundle(rows, f"block of {call} with uncut channels")
    trace.guess(call, len(rows), rows[:, 0])


def _free_axis(call: Call) -> int | None:
    """Return the axis whose size a reshape works out by itself, where -1 is written."""
    sizes = list(_numbers((call.args[1:], tuple(call.kwargs.values()))))
    start = sizes.pop(0) % call.arg(0, "input").dim() if call.name == "unflatten" else 0
    return start + sizes.index(-1) if -1 in sizes else None


def _numbers(value: Any) -> Iterator[int]:
    """Yield the integers inside nested tuples and lists."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int):
        yield value


def _blocks(old: torch.Size, new: torch.Size) -> Iterator[tuple[range, range]]:
    """Yield the smallest runs of axes that a reshape turns into each other."""
    i = j = 0
    while i < len(old) and j < len(new):
        end_i, end_j, size_i, size_j = i + 1, j + 1, old[i], new[j]
        while size_i != size_j:
            if size_i < size_j:
                size_i, end_i = size_i * old[end_i], end_i + 1
            else:
                size_j, end_j = size_j * new[end_j], end_j + 1
        yield range(i, end_i), range(j, end_j)
        i, j = end_i, end_j


@RULES.on("channel_shuffle native_channel_shuffle")
def shuffles(trace: Trace, call: Call) -> Tensor:
    """Interleave blocks of channels, which lose the same positions."""
    channels, groups = trace.along(first_shadow(trace, call), 1, call), call.arg(1, "groups")
    trace.bundle_blocks(channels, groups, call)
    return spread(channels.reshape(groups, -1).T.flatten(), 1, call.out.shape)


@RULES.on("pixel_shuffle")
def folds_pixels(trace: Trace, call: Call) -> Tensor:
    """Turn factor² channels into one of more pixels: they share one fate."""
    channels = trace.along(first_shadow(trace, call), 1, call)
    blocks = channels.reshape(-1, call.arg(1, "upscale_factor") ** 2)
    leads = blocks[:, :1].expand_as(blocks)
    trace.tie(blocks, leads, f"tied to an uncut channel by {call}")
    return spread(leads[:, 0], 1, call.out.shape)


@RULES.on("pixel_unshuffle")
def unfolds_pixels(trace: Trace, call: Call) -> Tensor:
    """Turn one channel into factor² of fewer pixels."""
    channels = trace.along(first_shadow(trace, call), 1, call)
    repeated = channels.repeat_interleave(call.arg(1, "downscale_factor") ** 2)
    return spread(repeated, 1, call.out.shape)


@RULES.on("roll flip fft_fftshift fft_ifftshift")
def turns(trace: Trace, call: Call) -> Tensor:
    """Reorder entries along axes; channels among them stay full."""
    shadow = first_shadow(trace, call)
    axes = call.arg(2 if call.name == "roll" else 1, "dims", call.kwargs.get("dim"))
    axes = (axes,) if isinstance(axes, int) else axes
    if not axes or any(varies(shadow, axis) for axis in axes):
        trace.pin(shadow, f"reordered by {call}")
    return shadow


# --- picking ---------------------------------------------------------------------------------


# --- pooling, padding, resizing --------------------------------------------------------------


@RULES.on(
    *(f"{kind}_pool{n}d" for n in "123" for kind in ("avg", "max", "lp")),
    *(f"adaptive_{kind}_pool{n}d" for n in "123" for kind in ("avg", "max")),
    *(f"{kind}max_pool{n}d_with_indices" for n in "123" for kind in ("", "adaptive_")),
    "interpolate upsample upsample_nearest upsample_bilinear",
)
def pools(trace: Trace, call: Call) -> list[Tensor]:
    """Work on positions inside each channel (axis 1 of a batch)."""
    channels = trace.along(first_shadow(trace, call), 1, call)
    return [spread(channels, 1, out.shape) for out in tensors_in(call.out)]


@RULES.on("pad constant_pad_nd")
def pads(trace: Trace, call: Call) -> Tensor:
    """Add positions; added channels (an identity shortcut that grows) are no one's."""
    shadow, amounts = first_shadow(trace, call), list(call.arg(1, "pad"))
    for step in range(len(amounts) // 2):
        axis, ends = shadow.dim() - 1 - step, amounts[2 * step : 2 * step + 2]
        if not varies(shadow, axis):
            size = [-1] * shadow.dim()
            size[axis] = call.out.shape[axis]
            shadow = shadow.narrow(axis, 0, 1).expand(size)
        elif any(ends):
            if min(ends) < 0:
                trace.pin(shadow, f"cut at a fixed position by {call}")
            wide = F.pad(slim(shadow), [0] * (2 * step) + ends, value=NO_CHANNEL)
            size = list(shadow.shape)
            size[axis] = call.out.shape[axis]
            shadow = wide.expand(size)
    return shadow


# --- folding ---------------------------------------------------------------------------------


@RULES.on(
    "mean sum amax amin std var std_mean var_mean logsumexp prod argmax argmin median all any "
    "norm vector_norm linalg_norm linalg_vector_norm"
)
def folds(trace: Trace, call: Call) -> list[Tensor]:
    """Fold axes; a folded axis of channels stays full, branches on a new axis are tied."""
    shadow, outs = first_shadow(trace, call), list(tensors_in(call.out))
    axes = call.arg(2 if call.name.endswith("norm") else 1, "dim", call.kwargs.get("axis"))
    if axes is None or isinstance(axes, bool) or axes in ([], ()):
        axes = tuple(range(shadow.dim()))
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    folded = tied_along(trace, call, shadow, axes)
    if folded is None:
        trace.pin(shadow, f"folded by {call}")
        return [blank(out.shape) for out in outs]
    if call.name in ("sum", "mean") and any(varies(shadow, axis) for axis in axes):
        trace.streams.update(channel for channel in distinct(shadow) if channel >= 0)
    return [folded.reshape(out.shape) for out in outs]


@RULES.on("sort argsort topk kthvalue cummax cummin")
def orders(trace: Trace, call: Call) -> Any:
    """Order the entries along an axis, or take some of them; an axis of channels stays full."""
    shadow = first_shadow(trace, call)
    axis = call.arg(2 if call.name in ("topk", "kthvalue") else 1, "dim", -1)
    if varies(shadow, axis):
        return mixes(trace, call)
    thin, outs = shadow.narrow(axis, 0, 1), list(tensors_in(call.out))
    kept = outs[0].dim() == thin.dim()
    return [thin.expand(out.shape) if kept else thin.reshape(out.shape) for out in outs]


@RULES.on(
    *(f"fft_{kind}fft{n}" for kind in ("", "i", "r", "ir", "h", "ih") for n in ("", "2", "n"))
)
def transforms(trace: Trace, call: Call) -> Any:
    """Turn positions into frequencies, channel by channel; transformed channels stay full."""
    shadow, sizes = first_shadow(trace, call), call.arg(1, "s")
    last = {"2": 2, "n": len(sizes) if sizes else shadow.dim()}.get(call.name[-1], 1)
    axes = call.arg(2, "dim") or tuple(range(-last, 0))
    for axis in (axes,) if isinstance(axes, int) else axes:
        if varies(shadow, axis):
            return mixes(trace, call)
        shadow = shadow.narrow(axis, 0, 1)
    return shadow.expand(call.out.shape)


@RULES.on("view_as_real")
def parts_apart(trace: Trace, call: Call) -> Tensor:
    """Put real and imaginary parts on a new axis."""
    return first_shadow(trace, call).unsqueeze(-1).expand(call.out.shape)


@RULES.on("view_as_complex")
def parts_together(trace: Trace, call: Call) -> Tensor:
    """Take real and imaginary parts, which are one channel, from the last axis."""
    shadow = first_shadow(trace, call)
    folded = tied_along(trace, call, shadow, (-1,))
    if folded is None:
        trace.pin(shadow, f"folded by {call}")
        return blank(call.out.shape)
    return folded[..., 0]


@RULES.on("max min")
def extremes(trace: Trace, call: Call) -> Any:
    """Take the largest of two tensors, or along an axis, or of all."""
    if isinstance(call.arg(1, "other"), Tensor):
        return multiplies(trace, call)
    return folds(trace, call)


@RULES.on(
    "bmm baddbmm addmm einsum tensordot outer scaled_dot_product_attention cosine_similarity "
    "tril triu unfold fold"
)
def mixes(trace: Trace, call: Call) -> list[Tensor]:
    """Entries of different channels meet: all of them stay full, and so does the work."""
    reason = f"mixed by {call}"
    trace.pin_all((call.args, call.kwargs), reason)
    for operand in call.operands():
        trace.keep_whole(operand, reason)
    count_products(trace, call)
    return [blank(out.shape) for out in tensors_in(call.out)]
