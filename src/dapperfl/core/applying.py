"""What happens at a call while a net is watched: its rule is applied, or all it reads stays.

Three answers of a rule are possible: the operation keeps, creates, ties or reorders channels; it
mixes them, so they are pinned and stay full; or there is no rule that fits, and then all that the
call reads stays as it is, channels and weights alike. Nothing is guessed.
"""

from contextlib import suppress

from torch import Tensor, nn

from dapperfl.core.calls import Call, tensors_in
from dapperfl.core.derived import follow_derived
from dapperfl.core.elementwise import adds, follow_vector, keeps, multiplies, vector_of
from dapperfl.core.layers import NORMS, RULES
from dapperfl.core.products import count_products
from dapperfl.core.reshaping import extremes, moves, replay, reshapes
from dapperfl.core.shadows import blank
from dapperfl.core.taking import picks
from dapperfl.core.tracing import Trace
from dapperfl.errors import TraceError

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
        known = trace.is_known(operand) or (follows and vector_of(trace, operand))
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
    follow_derived(trace, call)
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
