"""One channel rule per kind of operation: what it does to the channels of its operands.

A rule reads a call's arguments and returns the shadows of its results. Three answers are possible:
the operation keeps, creates, ties or reorders channels; it mixes them, so they are pinned and stay
full; or there is no rule that fits, and then all that the call reads stays as it is, channels and
weights alike. Nothing is guessed. Here are the rules of layers with weights; those of other
operations are in `elementwise` and `reshaping`.
"""

from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from dapperfl.core import elementwise, reshaping
from dapperfl.core.calls import Call, tensors_in
from dapperfl.core.elementwise import (
    adds,
    first_shadow,
    follow_vector,
    keeps,
    multiplies,
    vector_of,
)
from dapperfl.core.products import count_products
from dapperfl.core.reshaping import extremes, mixes, moves, picks, replay, reshapes
from dapperfl.core.shadows import blank, slim, spread, varies
from dapperfl.core.tracing import Arithmetic, Resize, Rules, Trace
from dapperfl.errors import TraceError

RULES = Rules({**elementwise.RULES, **reshaping.RULES})

# Questions about a tensor that its channels' fate cannot change the sense of.
# fmt: off
_QUESTIONS = {
    "shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "len", "device", "dtype",
    "layout", "type", "stride", "element_size", "itemsize", "nbytes", "requires_grad", "grad_fn",
    "names", "get_device", "storage_offset", "data_ptr", "grad", "__hash__", "__repr__",
    "_backward_hooks", "set _backward_hooks",  # asked by autograd functions that write in place
    "__format__", "__dir__", "set requires_grad", "retain_grad", "register_hook", "output_nr",
    "nested_tensor_from_mask_left_aligned",  # asked of a mask by nn.TransformerEncoder
}
# fmt: on
# Calls that read only the type or the shape of their second operand.
_LIKENESSES = {"to", "type_as", "expand_as", "view_as", "reshape_as"}
# What a rule may raise on a use that it was not written for.
_MISFITS = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)


def apply_rule(trace: Trace, call: Call) -> None:
    """Work out the shadows of a call's results.

    Raises:
        TraceError: If the values of activations leave torch.
    """
    trace.calls += 1
    outs = list(tensors_in(call.out))
    if any(out.requires_grad for out in outs):
        _note_strangers(trace, call)
    _refuse_unseen(trace, call)
    read = call.operands()[:1] if call.name in _LIKENESSES else call.operands()
    if all(trace.shadow(operand) is None for operand in read):
        _follow_learnt(trace, call, read)
    elif not outs and (call.name in _QUESTIONS or call.name.startswith("is_")):
        pass
    elif not outs and call.out is not None:
        raise _leaves_torch(call)
    else:
        try:
            shadows = _shadows(trace, call)
        except TraceError as error:
            _leave_alone(trace, call, str(error))
        else:
            _keep_computed(trace, call, read)
            _cast(trace, call, shadows)


def _note_strangers(trace: Trace, call: Call) -> None:
    """Remember parameters that want a gradient and are not the net's: nobody would train them."""
    for operand in call.operands():
        learnt = isinstance(operand, nn.Parameter) and operand.requires_grad
        if learnt and not trace.is_state(operand):
            trace.strangers.append(f"a parameter of shape {tuple(operand.shape)} in {call}")


def _refuse_unseen(trace: Trace, call: Call) -> None:
    """Refuse what was learnt by a way that no call showed: its work could not be counted."""
    written = {id(result) for result in call.results()}
    for operand in call.operands():
        known = any(trace.shadow(each) is not None for each in (operand, operand._base))
        new = operand.grad_fn is not None and id(operand) not in written
        if new and not known and not trace.origin(operand):
            raise TraceError(
                f"{call} reads what a call that cannot be seen has made, such as torch.vmap or a "
                "compiled function; use plain tensor operations"
            )


def _cast(trace: Trace, call: Call, shadows: list[Tensor]) -> None:
    """Give a call's results their shadows; what was written through a view gets one as well."""
    outs = list(tensors_in(call.out))
    for out, shadow in zip(outs, shadows, strict=True):
        trace.set_shadow(out, shadow)
    for base in call.results()[len(outs) :]:
        if trace.shadow(base) is None:
            trace.set_shadow(base, blank(base.shape))


def _shadows(trace: Trace, call: Call) -> list[Tensor]:
    """Run a rule, and make sure that it fits the use."""
    if call.name not in RULES:
        raise TraceError(f"no channel rule for {call}")
    try:
        result = RULES[call.name](trace, call)
    except _MISFITS as error:
        why = str(error).partition("\n")[0]
        raise TraceError(f"the channel rule for {call} does not fit this use: {why}") from error
    shadows = result if isinstance(result, list) else [result]
    shapes = [tuple(out.shape) for out in tensors_in(call.out)]
    if [tuple(shadow.shape) for shadow in shadows] != shapes:
        raise TraceError(f"the channel rule for {call} does not fit this use: it gives {shapes}")
    return shadows


def _leave_alone(trace: Trace, call: Call, reason: str) -> None:
    """Keep all that a call reads as it is; then what it makes holds no channels."""
    trace.unruled.setdefault(f"{call.where}.{call.name}".lstrip("."), reason)
    trace.pin_all((call.args, call.kwargs), reason)
    for operand in call.operands():
        trace.keep_whole(operand, reason)
    with suppress(*_MISFITS):  # a call that cannot be repeated is not counted
        count_products(trace, call)
    for result in call.results():
        trace.pin_all(result, reason)
        trace.set_shadow(result, blank(result.shape))


def _keep_computed(trace: Trace, call: Call, read: list[Tensor]) -> None:
    """Keep the state whole that an operand was computed from in a way that no rule follows."""
    follows = RULES[call.name] in (adds, multiplies, extremes)  # learnt vectors
    for operand in read:
        known = trace.is_state(operand) or (follows and vector_of(trace, operand))
        if trace.shadow(operand) is None and not known:
            trace.keep_whole(operand, f"a tensor computed from it is used by {call}")


def _follow_learnt(trace: Trace, call: Call, read: list[Tensor]) -> None:
    """Look at a call without activations: it may compute a weight, or reshape a learnt vector."""
    if sum(operand.dim() > 1 for operand in read) > 1 or call.name in NORMS:  # it may be work
        trace.apart[trace.calls] = call
    if not call.name.startswith("new_") and not call.name.endswith("_like"):  # shapes, no values
        names = frozenset(name for operand in read for name in trace.origin(operand))
        for result in call.results():
            trace.set_origin(result, names)
    if not isinstance(call.out, Tensor) or not any(vector_of(trace, t) for t in call.operands()):
        return
    rule = RULES.get(call.name)
    with suppress(*_MISFITS):  # what is not followed is kept whole where it is used
        if rule in (keeps, adds, multiplies):
            follow_vector(trace, call)
        elif rule in (moves, picks, reshapes):
            positions = replay(call, lambda t: v.positions if (v := vector_of(trace, t)) else None)
            follow_vector(trace, call, positions=positions)


def _leaves_torch(call: Call) -> TraceError:
    return TraceError(
        f"the net's path or values depend on data outside torch: {call}; its channels cannot be "
        "traced. Write it with tensor operations such as torch.where"
    )


# --- layers with weights ---------------------------------------------------------------------


def weight_of(trace: Trace, call: Call, position: int, name: str = "weight") -> Tensor:
    """Return the weight of a layer, which must be a parameter to be cut."""
    weight = call.arg(position, name)
    if not trace.is_state(weight):
        raise TraceError(f"the {name} of {call} is computed, so it cannot be cut")
    assert isinstance(weight, Tensor)
    return weight


def write(trace: Trace, call: Call, weight: Tensor, *, axis: int, bias: Any) -> Tensor:
    """Return the channels a weight's axis writes, and bind its bias to them."""
    channels = trace.create(weight, axis, call)
    for name in trace.state_names(weight):
        trace.writers[name, axis] = None
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
    known, source = trace.state_names(weight), call.arg(0, "input")
    name = known[0] if known else None
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
    if trace.shadow(source) is None or not trace.is_state(weight) or weight.dim() != 2:
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
    if not alone or trace.is_state(weight):
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

    A number in a user's code cannot follow; the trial of the graph finds out.
    """
    own = nn.modules.conv._ConvNd | nn.GroupNorm | nn.modules.batchnorm._NormBase
    if isinstance(call.module, own) and hasattr(call.module, attribute):
        follows = Resize(call.where, attribute, channels, divisor)
        trace.resizes.setdefault((call.where, attribute), follows)


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
    if trace.is_state(affine[0]):
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
    if trace.is_state(weight):
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
