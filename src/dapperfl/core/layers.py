"""One channel rule per kind of operation: what it does to the channels of its operands.

A rule reads a call's arguments and returns the shadow of its result (see `tracing`). Three answers
are possible: the operation keeps, creates, ties or reorders channels; it mixes them, so they are
pinned and stay full; or there is no rule, and the net is refused by name. Nothing is guessed.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from dapperfl.core.tracing import (
    NO_CHANNEL,
    Arithmetic,
    Call,
    Resize,
    Trace,
    tensors_in,
    unknown,
    varies,
)
from dapperfl.errors import TraceError

Rule = Callable[[Trace, Call], Any]
RULES: dict[str, Rule] = {}
NEUTRAL = -2  # an entry broadcast over the channels: it takes whatever it meets


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def apply_rule(trace: Trace, call: Call) -> None:
    """Work out the shadows of a call's results."""
    if call.name in _DATA_DEPENDENT:
        raise TraceError(f"the net's path depends on data: {call}; its channels cannot be traced")
    outs = list(tensors_in(call.out))
    if not outs:
        return  # a shape, a device, a flag
    if call.name not in RULES:
        raise unknown(call)
    shadows = RULES[call.name](trace, call)
    inputs = list(tensors_in((call.args, call.kwargs)))
    plain = all(id(tensor) in trace.plain for tensor in inputs)
    for out, shadow in zip(outs, shadows if isinstance(shadows, list) else [shadows], strict=True):
        trace.set_shadow(out, shadow)
        trace.plain.discard(id(out))
        if plain:
            trace.plain.add(id(out))


_DATA_DEPENDENT = {"bool", "item", "float", "int", "index", "tolist", "nonzero"}


def first_shadow(trace: Trace, call: Call) -> Tensor:
    """Return the shadow of the operand a call works on."""
    shadow = trace.shadow(call.arg(0, "input"))
    if shadow is None:
        raise TraceError(f"{call} works on a tensor that does not come from the net's input")
    return shadow


def spread(channels: Tensor, axis: int, shape: torch.Size) -> Tensor:
    """Return the shadow of this shape whose channels run along one axis."""
    view = [1] * len(shape)
    view[axis] = -1
    return channels.reshape(view).expand(shape)


# --- operations that leave every entry where it is -------------------------------------------


@rule(
    *["relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh", "tanh", "sigmoid", "logsigmoid", "softplus", "softsign", "tanhshrink", "hardshrink", "softshrink", "threshold", "rrelu", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "square", "reciprocal", "sin", "cos", "erf", "clamp", "clamp_min", "clamp_max", "sign", "round", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout", "contiguous", "clone", "detach", "to", "type", "float", "double", "half", "bfloat16", "cpu", "cuda", "data", "requires_grad", "identity", "zeros_like", "ones_like", "nan_to_num"]
)  # fmt: skip
def keeps(trace: Trace, call: Call) -> Tensor:
    """Entry by entry: the channels stay what they are."""
    return first_shadow(trace, call)


@rule("softmax", "log_softmax", "softmin", "normalize", "cumsum", "local_response_norm")
def mixes_along(trace: Trace, call: Call) -> Tensor:
    """Entries along one axis depend on each other; if that is the channel axis, it stays full."""
    shadow = first_shadow(trace, call)
    default = -1 if call.name in ("softmax", "log_softmax", "softmin") else 1
    axis = call.arg(1, "dim", default) if call.name not in ("normalize",) else call.arg(2, "dim", 1)
    axis = 1 if call.name == "local_response_norm" else axis
    if axis is None or varies(shadow, axis):
        trace.pin(shadow, f"mixed by {call}")
    return shadow


# --- elementwise operations on several operands ----------------------------------------------


@rule("add", "sub", "maximum", "minimum", "where", "lerp", "addcmul")
def adds(trace: Trace, call: Call) -> Tensor:
    """An elementwise sum ties its operands' channels into a residual stream."""
    return combine(trace, call, stream=True)


@rule("mul", "div", "pow", "remainder", "fmod", "gt", "lt", "ge", "le", "eq", "ne")
def multiplies(trace: Trace, call: Call) -> Tensor:
    """A product (squeeze-and-excite) ties its operands' channels, but makes no stream."""
    return combine(trace, call, stream=False)


def combine(trace: Trace, call: Call, *, stream: bool) -> Tensor:
    """Fold the operands of an elementwise operation into one shadow."""
    operands = list(tensors_in((call.args, call.kwargs)))
    shape = call.out.shape
    result = torch.full((1,) * len(shape), NEUTRAL)
    for operand in operands:
        shadow = trace.shadow(operand)
        if shadow is None and not trace.is_state(operand):
            shadow = torch.full((1,), NO_CHANNEL).expand(operand.shape)
        if shadow is not None:
            shadow = shadow.reshape((1,) * (len(shape) - shadow.dim()) + tuple(shadow.shape))
            result = meet(trace, call, result, shadow, stream=stream)
    result = result.expand(shape)
    for operand in operands:
        if trace.is_state(operand):
            bind_broadcast(trace, call, operand, result)
    return result.where(result != NEUTRAL, NO_CHANNEL)


def meet(trace: Trace, call: Call, first: Tensor, second: Tensor, *, stream: bool) -> Tensor:
    """Tie two shadows after broadcasting; one value spread over channels decides nothing."""
    if bool((first == NEUTRAL).all()):
        return second
    first, second = (
        neutral_if_spread(trace, call, first, second),
        neutral_if_spread(trace, call, second, first),
    )
    first, second = torch.broadcast_tensors(first, second)
    if NEUTRAL not in (int(first.amin()), int(second.amin())):
        trace.tie(first, second, f"tied to a tensor without channels by {call}")
    if stream:
        met = (first >= 0) & (second >= 0) & (first != second)
        trace.streams.update(torch.unique(first[met]).tolist())
    return torch.maximum(first, second)


def neutral_if_spread(trace: Trace, call: Call, small: Tensor, large: Tensor) -> Tensor:
    """Return `small`, or a neutral shadow where one of its channels is spread over many."""
    axes = range(small.dim())
    if any(small.shape[d] == 1 < large.shape[d] and varies(large, d) for d in axes):
        trace.pin(small, f"spread over other channels by {call}")
        return torch.full((1,) * small.dim(), NEUTRAL)
    return small


def bind_broadcast(trace: Trace, call: Call, tensor: Tensor, shadow: Tensor) -> None:
    """Tie the axes of a parameter used elementwise (a learnt scale, a bias) to the channels."""
    lead = shadow.dim() - tensor.dim()
    for axis in range(tensor.dim()):
        if tensor.shape[axis] > 1 and varies(shadow, lead + axis):
            trace.bind(tensor, axis, trace.along(shadow, lead + axis, call), call)


# --- layers with weights ---------------------------------------------------------------------


def weight_of(trace: Trace, call: Call, position: int, name: str = "weight") -> Tensor:
    """Return the weight of a layer, which must be a parameter to be cut."""
    weight = call.arg(position, name)
    if not trace.is_state(weight):
        raise TraceError(
            f"the {name} of {call} is computed, not a parameter of the net, so it cannot be cut; "
            "remove the parametrisation (weight norm, spectral norm) or fold it first"
        )
    assert isinstance(weight, Tensor)
    return weight


def write(trace: Trace, call: Call, weight: Tensor, *, axis: int, bias: Any) -> Tensor:
    """Return the channels a weight's axis writes, and bind its bias to them."""
    channels = trace.create(weight, axis, call)
    for name in trace.state_names(weight):
        trace.writers[name, axis] = None
    if bias is not None:
        trace.bind(bias, 0, channels, call)
    return channels


def count_work(
    trace: Trace, call: Call, weight: Tensor, positions: int, *, norm: bool = False
) -> None:
    """Remember the multiplications of a layer; `positions` counts the whole batch."""
    source = call.arg(0, "input")
    name = trace.state_names(weight)[0]
    first = id(source) in trace.plain
    trace.arithmetic.append(Arithmetic(name, positions // len(source), first, norm))


@rule("linear")
def linear(trace: Trace, call: Call) -> Tensor:
    """Read the last axis, which may be a flattened feature map, and write new channels."""
    weight, bias = weight_of(trace, call, 1), call.arg(2, "bias")
    trace.bind(weight, 1, trace.along(first_shadow(trace, call), -1, call), call)
    channels = write(trace, call, weight, axis=0, bias=bias)
    count_work(trace, call, weight, call.out.numel() // weight.shape[0])
    return spread(channels, -1, call.out.shape)


@rule("conv1d", "conv2d", "conv3d")
def convolution(trace: Trace, call: Call) -> Tensor:
    """Read axis 1 and write new channels; grouped and depthwise forms keep their structure."""
    weight, bias, groups = weight_of(trace, call, 1), call.arg(2, "bias"), call.arg(6, "groups", 1)
    source = trace.along(first_shadow(trace, call), 1, call)
    count_work(trace, call, weight, call.out.numel() // weight.shape[0])
    channels = write(trace, call, weight, axis=0, bias=bias)
    if groups > 1 and groups == len(source):
        tie_depthwise(trace, call, channels, source)
    else:
        trace.bind(weight, 1, source[: weight.shape[1]], call)
        if groups > 1:
            bundle_blocks(trace, call, source, groups)
            bundle_blocks(trace, call, channels, groups)
    return spread(channels, 1, call.out.shape)


def bundle_blocks(trace: Trace, call: Call, channels: Tensor, blocks: int) -> None:
    """Make every block lose the same positions, and so equally many channels."""
    trace.bundle(channels.reshape(blocks, -1).T, f"block of {call} with uncut channels")


def tie_depthwise(trace: Trace, call: Call, channels: Tensor, source: Tensor) -> None:
    """Tie each output channel of a depthwise convolution to the input channel it filters."""
    repeated = source.repeat_interleave(len(channels) // len(source))
    trace.tie(channels, repeated, f"filters an uncut channel in {call}")
    resize(trace, call, "groups", source, 1)


def resize(trace: Trace, call: Call, attribute: str, channels: Tensor, divisor: int) -> None:
    """Let a layer's attribute follow its channels, or pin them where the number is in code."""
    if isinstance(call.module, nn.modules.conv._ConvNd | nn.GroupNorm):
        trace.resizes.append(Resize(call.where, attribute, channels, divisor))
    else:
        trace.pin(channels, f"the argument {attribute} of {call} is fixed in code")


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(trace: Trace, call: Call) -> Tensor:
    """Like a convolution, with the axes of the weight exchanged."""
    weight, bias, groups = weight_of(trace, call, 1), call.arg(2, "bias"), call.arg(6, "groups", 1)
    source = trace.along(first_shadow(trace, call), 1, call)
    if groups > 1:
        raise TraceError(f"no channel rule for {call} with groups={groups}")
    trace.bind(weight, 0, source, call)
    channels = write(trace, call, weight, axis=1, bias=bias)
    count_work(trace, call, weight, prod(call.arg(0, "input").shape) // weight.shape[0])
    return spread(channels, 1, call.out.shape)


@rule("embedding")
def embedding(trace: Trace, call: Call) -> Tensor:
    """Look rows up; the features are new channels."""
    weight = weight_of(trace, call, 1)
    return spread(write(trace, call, weight, axis=1, bias=None), -1, call.out.shape)


@rule("prelu")
def prelu(trace: Trace, call: Call) -> Tensor:
    """Scale negative entries with one slope for all channels, or one for each."""
    shadow, weight = first_shadow(trace, call), weight_of(trace, call, 1)
    if weight.numel() > 1:
        trace.bind(weight, 0, trace.along(shadow, 1, call), call)
    return shadow


# --- norms -----------------------------------------------------------------------------------


def bind_norm(trace: Trace, call: Call, channels: Tensor, affine: tuple[Any, Any]) -> None:
    """Bind a norm's weight and bias, which gate its channels."""
    for tensor in affine:
        trace.bind(tensor, 0, channels, call)
        trace.gates.update(trace.state_names(tensor))
    if trace.is_state(affine[0]):
        count_work(trace, call, affine[0], call.out.numel() // len(channels), norm=True)


@rule("batch_norm", "instance_norm")
def channel_norm(trace: Trace, call: Call) -> Tensor:
    """Normalise each channel by itself."""
    shadow = first_shadow(trace, call)
    channels = trace.along(shadow, 1, call)
    for position, name in ((1, "running_mean"), (2, "running_var")):
        trace.bind(call.arg(position, name), 0, channels, call)
    bind_norm(trace, call, channels, (call.arg(3, "weight"), call.arg(4, "bias")))
    return shadow


@rule("group_norm")
def group_norm(trace: Trace, call: Call) -> Tensor:
    """Normalise groups of channels: a group stays or goes as a whole."""
    shadow, groups = first_shadow(trace, call), call.arg(1, "num_groups")
    channels = trace.along(shadow, 1, call)
    size = len(channels) // groups
    trace.bundle(channels.reshape(groups, size), f"norm group of {call} with uncut channels")
    resize(trace, call, "num_groups", channels, size)
    bind_norm(trace, call, channels, (call.arg(2, "weight"), call.arg(3, "bias")))
    return shadow


@rule("layer_norm", "rms_norm")
def layer_norm(trace: Trace, call: Call) -> Tensor:
    """Normalise over the last axes; a channel axis among them stays full."""
    shadow = first_shadow(trace, call)
    last = len(call.arg(1, "normalized_shape"))
    if any(varies(shadow, axis) for axis in range(shadow.dim() - last, shadow.dim())):
        trace.pin(shadow, f"normalised over its channels by {call}")
    weight = call.arg(2, "weight")
    if trace.is_state(weight):
        count_work(trace, call, weight, call.out.numel() // weight.numel(), norm=True)
    return shadow


# --- pooling, padding, resizing --------------------------------------------------------------


@rule(
    *["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "lp_pool1d", "lp_pool2d", "interpolate", "upsample", "upsample_nearest", "upsample_bilinear", "boolean_dispatch", "max_pool1d_with_indices", "max_pool2d_with_indices"]
)  # fmt: skip
def spatial(trace: Trace, call: Call) -> Any:
    """Work on positions inside each channel (axis 1 of a batch)."""
    channels = trace.along(first_shadow(trace, call), 1, call)
    shadows = [spread(channels, 1, out.shape) for out in tensors_in(call.out)]
    return shadows if len(shadows) > 1 else shadows[0]


@rule("pad")
def pad(trace: Trace, call: Call) -> Tensor:
    """Add positions; padded channels (an identity shortcut that grows) are no one's."""
    source, amounts = call.arg(0, "input"), list(call.arg(1, "pad"))
    if len(amounts) <= 2 * (source.dim() - 2):
        shadow: Tensor = spatial(trace, call)
        return shadow
    value = torch.full((1,), NO_CHANNEL).item()
    result: Tensor = nn.functional.pad(first_shadow(trace, call), amounts, value=value)
    return result


# --- reductions ------------------------------------------------------------------------------


@rule("mean", "sum", "amax", "amin", "std", "var", "norm", "logsumexp", "prod", "argmax", "argmin",
      "vector_norm", "linalg_vector_norm")  # fmt: skip
def reduces(trace: Trace, call: Call) -> Tensor:
    """Fold axes; a folded channel axis stays full."""
    shadow = first_shadow(trace, call)
    position = 2 if "norm" in call.name else 1
    axes = call.arg(position, "dim", call.kwargs.get("axis"))
    if axes is None or (isinstance(axes, list | tuple) and not axes):
        axes = tuple(range(shadow.dim()))
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if any(varies(shadow, axis) for axis in axes):
        trace.pin(shadow, f"folded by {call}")
        return torch.full((1,), NO_CHANNEL).expand(call.out.shape)
    return shadow.amax(axes).reshape(call.out.shape) if axes else shadow


@rule("max", "min")
def extreme(trace: Trace, call: Call) -> Any:
    """The largest of two tensors, or along an axis, or of all."""
    if isinstance(call.arg(1, "other"), Tensor):
        return adds(trace, call)
    values = next(tensors_in(call.out))
    plain = Call(call.name, call.where, call.module, call.func, call.args, call.kwargs, values)
    shadow = reduces(trace, plain)
    return [shadow] * len(list(tensors_in(call.out)))


# --- products of activations -----------------------------------------------------------------


@rule("matmul", "mm", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention", "glu",
      "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "roll", "flip", "sort", "topk",
      "cosine_similarity", "outer", "tril", "triu")  # fmt: skip
def mixes(trace: Trace, call: Call) -> Any:
    """Entries of different channels meet: all of them stay full."""
    for tensor in tensors_in((call.args, call.kwargs)):
        shadow = trace.shadow(tensor)
        if shadow is not None:
            trace.pin(shadow, f"mixed by {call}")
    shadows = [torch.full((1,), NO_CHANNEL).expand(out.shape) for out in tensors_in(call.out)]
    return shadows if len(shadows) > 1 else shadows[0]


# --- changes of shape: done to the shadow as to the tensor -----------------------------------


def on_shadow(trace: Trace, value: Any) -> Any:
    """Replace tensors by their shadows, in nested arguments."""
    if isinstance(value, Tensor):
        shadow = trace.shadow(value)
        if shadow is None and value.is_floating_point():
            return torch.full((1,), NO_CHANNEL).expand(value.shape)
        return value if shadow is None else shadow
    if isinstance(value, tuple | list):
        return type(value)(on_shadow(trace, item) for item in value)
    return value


def replay(trace: Trace, call: Call) -> Any:
    """Run a call on the shadows of its operands."""
    kwargs = {name: on_shadow(trace, value) for name, value in call.kwargs.items()}
    return call.func(*on_shadow(trace, call.args), **kwargs)


@rule("permute", "transpose", "t", "T", "mT", "swapaxes", "swapdims", "movedim", "moveaxis",
      "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "tile", "repeat_interleave", "cat",
      "stack", "hstack", "vstack", "broadcast_to", "as_subclass")  # fmt: skip
def rearranges(trace: Trace, call: Call) -> Tensor:
    """Move entries around; nothing is lost and nothing is cut by a fixed size."""
    result: Tensor = replay(trace, call)
    return result


@rule("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "ravel")
def reshapes(trace: Trace, call: Call) -> Tensor:
    """Merge axes freely; a channel axis that is split stays full."""
    shadow = first_shadow(trace, call)
    if splits_channels(shadow, call.out.shape):
        trace.pin(shadow, f"split into several axes by {call}")
    return shadow.reshape(call.out.shape)


def splits_channels(shadow: Tensor, shape: torch.Size) -> bool:
    """Tell whether a reshape cuts an axis of channels into several."""
    old, new = list(shadow.shape), list(shape)
    i = j = 0
    while i < len(old) and j < len(new):
        end_i, end_j, size_i, size_j = i + 1, j + 1, old[i], new[j]
        while size_i != size_j:
            if size_i < size_j:
                size_i, end_i = size_i * old[end_i], end_i + 1
            else:
                size_j, end_j = size_j * new[end_j], end_j + 1
        pieces = sum(size > 1 for size in new[j:end_j])
        if pieces > 1 and any(varies(shadow, axis) for axis in range(i, end_i)):
            return True
        i, j = end_i, end_j
    return False


@rule("chunk")
def chunks(trace: Trace, call: Call) -> list[Tensor]:
    """Cut into equal parts, which must stay equal: they lose the same positions."""
    shadow, axis = first_shadow(trace, call), call.arg(2, "dim", 0)
    parts = list(replay(trace, call))
    if varies(shadow, axis):
        channels = trace.along(shadow, axis, call)
        if len({part.shape[axis] for part in parts}) > 1:
            trace.pin(channels, f"cut into unequal parts by {call}")
        else:
            bundle_blocks(trace, call, channels, len(parts))
    return parts


@rule("getitem", "narrow", "select", "index_select", "split", "split_with_sizes", "tensor_split",
      "unbind", "unfold", "gather", "take_along_dim", "index")  # fmt: skip
def picks(trace: Trace, call: Call) -> Any:
    """Take some entries; channels picked by a fixed position stay full."""
    shadow, result = first_shadow(trace, call), replay(trace, call)
    parts = list(tensors_in(result))
    whole = torch.unique(shadow)
    if any(not torch.equal(torch.unique(part), whole) for part in parts):
        trace.pin(shadow, f"cut at a fixed position by {call}")
    return parts if len(parts) > 1 or not isinstance(result, Tensor) else parts[0]


# --- the sizes a layer writes on itself ------------------------------------------------------


def refresh_sizes(module: nn.Module) -> None:
    """Make a layer's size attributes say what its tensors are."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        module.in_channels, module.out_channels = module.weight.shape[:2]
    elif isinstance(module, nn.modules.conv._ConvNd):
        module.out_channels = module.weight.shape[0]
        module.in_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.GroupNorm) and isinstance(weight, Tensor):
        module.num_channels = len(weight)
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        own = [weight, module.running_mean]
        module.num_features = next((len(t) for t in own if t is not None), module.num_features)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.numel()
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
