"""Channel rules of operations that take parts of a tensor: splits, slices, picked entries.

Parts that begin and end with blocks of channels follow a cut; channels picked one by one stay full.
"""

from math import gcd
from typing import Any

import torch
from torch import Tensor

from dapperfl.core.calls import Call, tensors_in
from dapperfl.core.elementwise import first_shadow
from dapperfl.core.reshaping import replay
from dapperfl.core.shadows import distinct, slim, spread, varies
from dapperfl.core.tracing import Rules, Trace

RULES = Rules()


@RULES.on("chunk split split_with_sizes tensor_split")
def splits(trace: Trace, call: Call) -> list[Tensor]:
    """Cut into parts, which keep their shares: blocks of one size lose the same positions."""
    shadow, axis = first_shadow(trace, call), call.arg(2, "dim", 0)
    parts = list(replay(call, trace.shadow))
    if varies(shadow, axis):
        channels = trace.along(shadow, axis, call)
        block = gcd(*(part.shape[axis] for part in parts))
        if block == 1:
            trace.pin(channels, f"cut into unequal parts by {call}")
        else:
            trace.bundle_blocks(channels, len(channels) // block, call)
            for part in parts:
                trace.guess(call, part.shape[axis], trace.along(part, axis, call))
    return parts


@RULES.on("glu")
def gates_halves(trace: Trace, call: Call) -> Tensor:
    """Multiply one half of the channels by a gate made of the other."""
    shadow, axis = first_shadow(trace, call), call.arg(1, "dim", -1)
    first, second = shadow.chunk(2, axis)
    trace.tie(first, second, f"gated by an uncut channel in {call}")
    return first


@RULES.on("getitem narrow select index_select unbind gather take_along_dim")
def picks(trace: Trace, call: Call) -> Any:
    """Take some entries; blocks of channels keep their shares, those picked one by one stay."""
    shadow, source = first_shadow(trace, call), call.arg(0, "input")
    parts = list(tensors_in(replay(call, lambda t: shadow if t is source else None)))
    if len(call.operands()) > 1:
        trace.pin(shadow, f"cut at a fixed position by {call}")
    elif not all(_is_even(part, shadow) for part in parts):
        _cuts_out(trace, call, shadow)
    return parts


def _cuts_out(trace: Trace, call: Call, shadow: Tensor) -> None:
    """Split channels into blocks that slices begin and end with, such as halves.

    `x[:, : x.shape[1] // 2]` follows a cut; that a number in code does not, the trial finds out.
    An axis of blocks, as after `x.view(b, 2, -1)`, is never cut: any of its entries may be taken.
    """
    axes = [axis for axis in range(shadow.dim()) if varies(shadow, axis)]
    for axis in axes:
        size = shadow.shape[axis]
        positions = spread(torch.arange(size), axis, shadow.shape)
        taken = _taken(call, positions)
        if all(len(each) == size for each in taken) or trace.is_bundled(shadow, axis):
            continue
        block = gcd(size, *(number for each in taken for number in (*each[:1], len(each))))
        if len(axes) > 1 or block == 1 or not all(_is_run(each) for each in taken):
            trace.pin(shadow, f"cut at a fixed position by {call}")
            return
        channels = trace.along(shadow, axis, call)
        trace.bundle_blocks(channels, size // block, call)
        for each in taken:
            for number in (each[0], each[-1] + 1):  # where a slice begins and ends
                trace.guess(call, number, channels[:number])


def _taken(call: Call, positions: Tensor) -> list[list[int]]:
    """Return the positions that each of a call's results takes."""
    return [distinct(out) for out in tensors_in(replay(call, lambda _: positions))]


def _is_run(positions: list[int]) -> bool:
    return bool(positions) and positions[-1] - positions[0] < len(positions)


def _is_even(part: Tensor, whole: Tensor) -> bool:
    """Tell whether a part has the same share of the entries of every channel."""
    (channels, before), (found, after) = (
        torch.unique(slim(shadow), return_counts=True) for shadow in (whole, part)
    )
    if not torch.equal(channels, found):
        return False
    shares = (after / before)[channels >= 0]
    return bool((shares == shares[:1]).all())
