"""One channel rule per kind of operation: what it does to the channels of its operands.

A rule reads a call's arguments and returns the shadows of its results. Here are the rules of layers
with weights; those of other operations are in `elementwise` and `reshaping`. What they all may say,
and who asks them, is in `applying`.
"""

from typing import Any

from torch import Tensor, nn

from dapperfl.core import elementwise, reshaping, taking
from dapperfl.core.calls import Call
from dapperfl.core.elementwise import first_shadow
from dapperfl.core.reshaping import mixes
from dapperfl.core.shadows import blank, slim, spread, varies
from dapperfl.core.tracing import Arithmetic, Resize, Rules, Trace
from dapperfl.errors import TraceError

RULES = Rules({**elementwise.RULES, **reshaping.RULES, **taking.RULES})


def weight_of(trace: Trace, call: Call, position: int, name: str = "weight") -> Tensor:
    """Return the weight of a layer: to be cut, it must be a parameter, or derived from one."""
    weight = call.arg(position, name)
    if not trace.is_known(weight):
        raise TraceError(f"the {name} of {call} is computed, so it cannot be cut")
    assert isinstance(weight, Tensor)
    return weight


def write(trace: Trace, call: Call, weight: Tensor, *, axis: int, bias: Any) -> Tensor:
    """Return the channels a weight's axis writes, and bind its bias to them."""
    channels = trace.create(weight, axis, call)
    for place in trace.axis_names(weight, axis):
        trace.writers[place] = None
    trace.bind(bias, 0, channels, call)
    return channels


def count_work(
    trace: Trace,
    call: Call,
    weight: Tensor,
    entries: int,
    *,
    norm: bool,
    along: tuple[Tensor, ...] = (),
) -> None:
    """Remember the multiplications of a layer; `entries` counts the whole batch.

    Where channels that may go are among the positions, `along` says which.
    """
    whole = [state for state, _ in trace.sources(weight) if state.numel() == weight.numel()]
    name, source = trace.state_names(whole[0])[0] if whole else None, call.arg(0, "input")
    back = call.out.requires_grad  # nothing is learnt under no_grad
    first, learnt = not (back and source.requires_grad), back and weight.requires_grad
    work = Arithmetic(name, entries // trace.batch, first, norm, learnt, along)
    trace.arithmetic.append(work)
    trace.remember_way(work, [call.out])


@RULES.on("linear")
def linear(trace: Trace, call: Call) -> Tensor:
    """Read the last axis, which may be a flattened feature map, and write new channels."""
    return dense(trace, call, weight_of(trace, call, 1), writes=0, bias=call.arg(2, "bias"))


def dense(trace: Trace, call: Call, weight: Tensor, *, writes: int, bias: Any) -> Tensor:
    """Read the last axis with one axis of a matrix, and write new channels with the other."""
    trace.bind(weight, 1 - writes, trace.along(first_shadow(trace, call), -1, call), call)
    channels = write(trace, call, weight, axis=writes, bias=bias)
    count_work(trace, call, weight, call.out.numel() // weight.shape[writes], norm=False)
    return spread(channels, -1, call.out.shape)


@RULES.on("matmul mm")
def matrix_product(trace: Trace, call: Call) -> Any:
    """A product with a parameter, (in, out), is a linear layer; any other mixes channels."""
    source, weight = call.arg(0, "input"), call.arg(1, "other", call.kwargs.get("mat2"))
    if trace.shadow(source) is None or not trace.is_known(weight) or weight.dim() != 2:
        return mixes(trace, call)
    return dense(trace, call, weight, writes=1, bias=None)


@RULES.on("conv1d conv2d conv3d")
def convolution(trace: Trace, call: Call) -> Tensor:
    """Read axis 1 and write new channels; grouped and depthwise forms keep their structure."""
    if _blurs(trace, call):
        return blur(trace, call)
    weight, bias, groups = weight_of(trace, call, 1), call.arg(2, "bias"), call.arg(6, "groups", 1)
    source = trace.along(first_shadow(trace, call), 1, call)
    count_work(trace, call, weight, call.out.numel() // weight.shape[0], norm=False)
    channels = write(trace, call, weight, axis=0, bias=bias)
    if groups > 1 and groups == len(source):
        repeated = source.repeat_interleave(len(channels) // groups)
        trace.tie(channels, repeated, f"filters an uncut channel in {call}")
        resize(trace, call, "groups", source)
    else:
        trace.bind(weight, 1, source[: weight.shape[1]], call)
        if groups > 1:
            trace.bundle_blocks(source, groups, call)
            trace.bundle_blocks(channels, groups, call)
    return spread(channels, 1, call.out.shape)


def _blurs(trace: Trace, call: Call) -> bool:
    """Tell whether each channel is filtered by itself, all by one filter that code repeats."""
    weight, groups = call.arg(1, "weight"), call.arg(6, "groups", 1)
    alone = groups == call.arg(0, "input").shape[1] == len(weight) > 1
    if not alone or trace.is_known(weight):
        return False
    if weight.requires_grad:  # learnt filters that are alike today need not stay so
        return bool(weight.stride(0) == 0)
    return bool((weight == weight[:1]).all())


def blur(trace: Trace, call: Call) -> Tensor:
    """Pass the channels on; there are as many copies of the filter as there are channels."""
    weight = call.arg(1, "weight")
    channels = trace.along(first_shadow(trace, call), 1, call)
    trace.bind(call.arg(2, "bias"), 0, channels, call)
    entries = weight[0].numel() * call.out.numel()
    count_work(trace, call, weight, entries, norm=False, along=(channels,))
    return spread(channels, 1, call.out.shape)


@RULES.on("conv_transpose1d conv_transpose2d conv_transpose3d")
def transposed_convolution(trace: Trace, call: Call) -> Tensor:
    """Like a convolution, with the axes of the weight exchanged.

    A depthwise one passes its channels on; any other grouped one stays full.
    """
    weight, bias, groups = weight_of(trace, call, 1), call.arg(2, "bias"), call.arg(6, "groups", 1)
    source = trace.along(first_shadow(trace, call), 1, call)
    count_work(trace, call, weight, call.arg(0, "input").numel() // weight.shape[0], norm=False)
    if groups == len(source) and groups > 1:
        trace.bind(weight, 0, source, call)
        channels = source.repeat_interleave(weight.shape[1])
        trace.bind(bias, 0, channels, call)
        resize(trace, call, "groups", source)
        return spread(channels, 1, call.out.shape)
    if groups > 1:
        trace.pin(source, f"filtered in groups by {call}")
        return blank(call.out.shape)
    trace.bind(weight, 0, source, call)
    channels = write(trace, call, weight, axis=1, bias=bias)
    return spread(channels, 1, call.out.shape)


def resize(trace: Trace, call: Call, attribute: str, channels: Tensor, divisor: int = 1) -> None:
    """Let an attribute of torch's own layers follow its channels.

    A number in a user's code cannot follow, one that a user's layer holds may: the trial of the
    graph finds out.
    """
    own = nn.modules.conv._ConvNd | nn.GroupNorm | nn.modules.batchnorm._NormBase
    if isinstance(call.module, own) and hasattr(call.module, attribute):
        follows = Resize(call.where, attribute, channels, divisor)
        trace.resizes.setdefault((call.where, attribute), follows)
    else:
        trace.guess(call, len(channels) // divisor, channels, divisor)


@RULES.on("embedding")
def embedding(trace: Trace, call: Call) -> Tensor:
    """Look rows up; the features are new channels."""
    weight = weight_of(trace, call, 1)
    trace.pin(first_shadow(trace, call), f"used as an index by {call}")
    return spread(write(trace, call, weight, axis=1, bias=None), -1, call.out.shape)


@RULES.on("prelu")
def prelu(trace: Trace, call: Call) -> Tensor:
    """Scale negative entries with one slope for all channels, or one for each."""
    shadow, weight = first_shadow(trace, call), weight_of(trace, call, 1)
    if weight.numel() > 1:
        trace.bind(weight, 0, trace.along(shadow, 1, call), call)
    return shadow


# --- norms -----------------------------------------------------------------------------------


NORMS = ("batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm")


def bind_norm(trace: Trace, call: Call, channels: Tensor, affine: tuple[Any, Any]) -> None:
    """Bind a norm's weight and bias, which gate its channels."""
    for tensor in affine:
        trace.bind(tensor, 0, channels, call)
        trace.norms.update(trace.state_names(tensor))
    if trace.is_known(affine[0]):
        count_work(trace, call, affine[0], call.out.numel() // len(channels), norm=True)


@RULES.on("batch_norm instance_norm")
def channel_norm(trace: Trace, call: Call) -> Tensor:
    """Normalise each channel by itself."""
    shadow = first_shadow(trace, call)
    channels = trace.along(shadow, 1, call)
    for position, name in ((1, "running_mean"), (2, "running_var")):
        trace.bind(call.arg(position, name), 0, channels, call)
    bind_norm(trace, call, channels, (call.arg(3, "weight"), call.arg(4, "bias")))
    resize(trace, call, "num_features", channels)
    return shadow


@RULES.on("group_norm")
def group_norm(trace: Trace, call: Call) -> Tensor:
    """Normalise groups of channels: a group stays or goes as a whole."""
    shadow, groups = first_shadow(trace, call), call.arg(1, "num_groups")
    channels = trace.along(shadow, 1, call)
    size = len(channels) // groups
    trace.bundle(channels.reshape(groups, size), f"norm group of {call} with uncut channels")
    resize(trace, call, "num_groups", channels, size)
    resize(trace, call, "num_channels", channels)
    bind_norm(trace, call, channels, (call.arg(2, "weight"), call.arg(3, "bias")))
    return shadow


@RULES.on("layer_norm rms_norm")
def layer_norm(trace: Trace, call: Call) -> Tensor:
    """Normalise over the last axes; a channel axis among them stays full."""
    shadow = first_shadow(trace, call)
    last = len(call.arg(1, "normalized_shape"))
    if any(varies(shadow, axis) for axis in range(shadow.dim() - last, shadow.dim())):
        trace.pin(shadow, f"normalised over its channels by {call}")
    weight = call.arg(2, "weight")
    if trace.is_known(weight):
        rows = slim(shadow.flatten(-last)[..., 0]).flatten()
        entries = call.out.numel() // weight.numel()
        count_work(trace, call, weight, entries, norm=True, along=(rows,))
    return shadow


# --- the sizes a layer writes on itself ------------------------------------------------------


def refresh_sizes(module: nn.Module) -> None:
    """Make a layer's size attributes say what its weight is; norms are resized by the graph."""
    weight = module._parameters.get("weight")  # a computed one is never cut, and may be costly
    if weight is None:
        return
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        module.in_channels, module.out_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.conv._ConvNd):
        module.out_channels, module.in_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.PReLU):
        module.num_parameters = weight.numel()
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = weight.shape[1]
