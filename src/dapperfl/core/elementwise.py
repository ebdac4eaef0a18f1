"""Channel rules of operations that work entry by entry, on one operand or on several.

Several operands are broadcast against each other. Channels that meet are tied; a learnt vector or
map that meets channels (a scale, a bias, positions) is cut along with them.
"""

from typing import Any

import torch
from torch import Tensor

from dapperfl.core.calls import Call
from dapperfl.core.shadows import NO_CHANNEL, blank, distinct_pairs, slim, spread, varies
from dapperfl.core.tracing import Rules, Trace, Vector
from dapperfl.errors import TraceError

RULES = Rules()
NEUTRAL = -2  # an entry broadcast over the channels: it takes whatever it meets


def first_shadow(trace: Trace, call: Call) -> Tensor:
    """Return the shadow of the operand a call works on."""
    shadow = trace.shadow(call.arg(0, "input"))
    if shadow is None:
        raise TraceError(f"{call} works on a tensor that does not come from the net's input")
    return shadow


@RULES.on(
    "relu relu6 leaky_relu elu selu celu gelu silu mish rrelu hardswish hardsigmoid hardtanh "
    "hardshrink softshrink tanhshrink threshold tanh sigmoid logsigmoid softplus softsign exp "
    "expm1 log log1p log2 sqrt rsqrt square reciprocal abs neg pos sign round floor ceil sin "
    "cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc exp2 log10 trunc frac nan_to_num "
    "isnan isinf isfinite clamp clamp_min clamp_max dropout dropout1d dropout2d dropout3d "
    "alpha_dropout feature_dropout feature_alpha_dropout contiguous clone detach data "
    "requires_grad to type type_as float double half bfloat16 long int short char byte bool cpu "
    "cuda zeros_like ones_like real imag conj conj_physical resolve_conj angle "
    "invert full_like empty_like rand_like randn_like fill zero bernoulli uniform normal"
)
def keeps(trace: Trace, call: Call) -> Tensor:
    """Entry by entry: the channels stay what they are."""
    return first_shadow(trace, call)


@RULES.on("new_zeros new_ones new_full new_empty new_tensor")
def makes_constant(trace: Trace, call: Call) -> Tensor:
    """Make a tensor of its own; only type and device are taken from the operand."""
    return blank(call.out.shape)


@RULES.on("softmax log_softmax softmin normalize cumsum local_response_norm")
def mixes_along(trace: Trace, call: Call) -> Tensor:
    """Entries along one axis depend on each other; if that is the channel axis, it stays full."""
    shadow = first_shadow(trace, call)
    if call.name == "local_response_norm":
        axis = 1
    elif call.name == "normalize":
        axis = call.arg(2, "dim", 1)
    else:
        axis = call.arg(1, "dim")
    if axis is None or tied_along(trace, call, shadow, (axis,)) is None:
        trace.pin(shadow, f"mixed by {call}")
    return shadow


def tied_along(trace: Trace, call: Call, shadow: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    """Tie the channels that meet along axes, as those of stacked branches, and return the first.

    Return None if they are all that the shadow holds: then none of them can go.
    """
    first = shadow
    for axis in axes:
        first = first.narrow(axis, 0, 1)
    if any(varies(shadow, axis) for axis in axes):
        if not any(varies(first, axis) for axis in range(first.dim())):
            return None
        trace.tie(shadow, first.expand(shadow.shape), f"meets an uncut channel in {call}")
    return first


@RULES.on("add sub lerp addcmul addcdiv")
def adds(trace: Trace, call: Call) -> Tensor:
    """An elementwise sum ties its operands' channels into a residual stream."""
    return combine(trace, call, stream=True)


@RULES.on(
    "mul div pow remainder fmod floordiv gt lt ge le eq ne maximum minimum fmax fmin where "
    "masked_fill logical_and logical_or logical_xor logaddexp logaddexp2 hypot atan2 xlogy "
    "complex polar"
)
def multiplies(trace: Trace, call: Call) -> Tensor:
    """A product (squeeze-and-excite) ties its operands' channels, but makes no stream."""
    return combine(trace, call, stream=False)


def combine(trace: Trace, call: Call, *, stream: bool) -> Tensor:
    """Fold the operands of an elementwise operation into one shadow."""
    shape = call.out.shape
    result = torch.full((1,) * len(shape), NEUTRAL)
    learnt = []
    for operand in call.operands():
        shadow = trace.shadow(operand)
        if shadow is None and (trace.is_known(operand) or vector_of(trace, operand)):
            learnt.append(operand)
            continue
        shadow = blank(operand.shape) if shadow is None else shadow
        shadow = shadow.reshape((1,) * (len(shape) - shadow.dim()) + tuple(shadow.shape))
        result = meet(trace, call, result, shadow, stream=stream)
    result = result.expand(shape)
    for operand in learnt:
        vector = vector_of(trace, operand)
        if vector is None:
            bind_map(trace, call, operand, result)
        else:
            bind_vector(trace, call, vector, result)
    return slim(result).clamp_min(NO_CHANNEL).expand(shape)


def meet(trace: Trace, call: Call, first: Tensor, second: Tensor, *, stream: bool) -> Tensor:
    """Tie two shadows after broadcasting; one value spread over channels decides nothing."""
    if int(slim(first).amax()) == NEUTRAL:
        return second
    first, second = (
        without_spread(trace, call, first, second),
        without_spread(trace, call, second, first),
    )
    shape = [max(sizes) for sizes in zip(first.shape, second.shape, strict=True)]
    if NEUTRAL not in (int(slim(first).amin()), int(slim(second).amin())):
        reason = f"tied to a tensor without channels by {call}"
        trace.tie(first.expand(shape), second.expand(shape), reason)
    first, second = slim(first), slim(second)
    if stream:
        met = (first >= 0) & (second >= 0) & (first != second)
        trace.streams.update(torch.maximum(first, second)[met].tolist())
    return torch.maximum(first, second).expand(shape)


def without_spread(trace: Trace, call: Call, small: Tensor, large: Tensor) -> Tensor:
    """Return `small`, or a neutral shadow if one of its entries meets many channels of `large`."""
    expanded = int(slim(small).amin()) >= 0  # by hand: `scale.expand_as(x)`
    for d in range(small.dim()):
        if varies(large, d) and (small.shape[d] == 1 or (expanded and not varies(small, d))):
            trace.pin(small, f"spread over other channels by {call}")
            return torch.full((1,) * small.dim(), NEUTRAL)
    return small


def bind_map(trace: Trace, call: Call, tensor: Tensor, shadow: Tensor) -> None:
    """Tie the axes of a parameter used elementwise (learnt positions) to the channels."""
    lead = shadow.dim() - tensor.dim()
    for axis in range(tensor.dim()):
        if tensor.shape[axis] > 1 and varies(shadow, lead + axis):
            trace.bind(tensor, axis, trace.along(shadow, lead + axis, call), call)


def vector_of(trace: Trace, tensor: Tensor) -> Vector | None:
    """Return where a tensor's entries come from, if it is a learnt vector or made of some."""
    known = trace.vectors.get(id(tensor))
    if known or not trace.is_state(tensor):
        return known
    axis = _long_axis(tensor)
    if axis is None:
        return None
    positions = spread(torch.arange(tensor.shape[axis]), axis, tensor.shape)
    return Vector(tensor, positions, (tensor,))


def bind_vector(trace: Trace, call: Call, vector: Vector, shadow: Tensor) -> None:
    """Cut a learnt vector along with the channels it meets."""
    positions = vector.positions.expand(shadow.shape)
    if not any(varies(positions, axis) and varies(shadow, axis) for axis in range(shadow.dim())):
        return  # it runs along an axis without channels
    channels = torch.full((vector.sources[0].numel(),), NO_CHANNEL)
    seen = set()
    for position, channel in distinct_pairs(positions, shadow):
        if position in seen:  # one entry for several channels
            trace.pin(shadow, f"spread over other channels by {call}")
            return
        seen.add(position)
        channels[position] = max(channel, NO_CHANNEL)
    if int(channels.amax()) >= 0:
        for source in vector.sources:
            trace.bind(source, _long_axis(source) or 0, channels, call)


def follow_vector(trace: Trace, call: Call, *, positions: Tensor | None = None) -> None:
    """Remember what learnt vectors were turned into, before they meet any activation."""
    vectors = [vector_of(trace, operand) for operand in call.operands() if operand.numel() > 1]
    known = [vector for vector in vectors if vector is not None]
    if not known or len(known) < len(vectors):
        return
    if positions is None:
        positions = known[0].positions
        if any(not torch.equal(vector.positions, positions) for vector in known):
            return
    if positions.shape == call.out.shape:
        sources = {id(s): s for vector in known for s in vector.sources}
        trace.vectors[id(call.out)] = Vector(call.out, positions, tuple(sources.values()))


def _long_axis(tensor: Any) -> int | None:
    """Return the only axis of a vector with more than one entry."""
    long = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    return long[0] if len(long) == 1 and tensor.is_floating_point() else None
