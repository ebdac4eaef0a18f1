"""A first look at a net: what it is made of, whether it can be copied, what it does when it runs.

Whatever no method could cut, copy or train is refused here, in a line that says what to do. The
rest is watched once in evaluation and once in training mode; `channels` makes a graph of it.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pickle import PickleError

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dapperfl.core.applying import apply_rule
from dapperfl.core.calls import Call, tensors_in
from dapperfl.core.layers import NORMS
from dapperfl.core.products import count_products
from dapperfl.core.shadows import NO_CHANNEL, slim
from dapperfl.core.submodel import copy_net
from dapperfl.core.tracing import Arithmetic, Product, Trace, named_tensors, new_trace, watch
from dapperfl.core.trial import MISFITS, first_line
from dapperfl.errors import TraceError

OUTPUT = "the net's output"
logger = logging.getLogger(__name__)


def check_parts(net: nn.Module) -> None:
    """Refuse a net with parts that no call shows, or no method can train."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in net.modules()):
        raise TraceError("the calls of a scripted module cannot be seen; give the plain module")
    if any("_orig_mod" in module._modules for module in net.modules()):
        raise TraceError(
            "a compiled module would be compiled anew for every size that is tried; give the plain "
            "module, before torch.compile"
        )
    for name, tensor in named_tensors(net):
        if is_lazy(tensor):
            raise TraceError(
                f'"{name}" has no size yet; run the net once on a batch, as in its constructor, '
                "before you hand it over"
            )
        if isinstance(tensor, nn.Parameter) and tensor.is_complex():
            raise TraceError(
                f'"{name}" is complex, and only real tensors are averaged; keep its real and '
                "imaginary parts on a last axis of 2, and use torch.view_as_complex in forward()"
            )
    _check_state(net)


def _check_state(net: nn.Module) -> None:
    """Refuse a net whose state is not its parameters and buffers: that is what is sent and cut."""
    own, state = dict(named_tensors(net)), net.state_dict()
    for name in [name for name in state if name not in own]:
        raise TraceError(
            f'state_dict() has "{name}", which is no parameter or buffer of the net; keep it in a '
            "buffer, and remove what adds or renames entries (get_extra_state, hooks)"
        )
    for name in [name for name, _ in net.named_parameters() if name not in state]:
        raise TraceError(
            f'state_dict() lacks the parameter "{name}", so that nobody could send it; keep it in, '
            "with requires_grad=False if it is not to learn"
        )


def own_copy(net: nn.Module) -> nn.Module:
    """Copy a net as a cut does, with tensors of our making in the places of its own."""
    memo: dict[int, object] = {}
    for _, tensor in named_tensors(net):
        ours = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(ours, tensor.requires_grad) if is_parameter else ours
    given = {id(ours) for ours in memo.values()}
    try:
        twin = copy_net(net, memo)
    except (TypeError, RuntimeError, PickleError) as error:
        raise TraceError(
            f"the net cannot be copied: {first_line(error)}; every device needs one of its own"
        ) from error
    if any(id(tensor) not in given for _, tensor in named_tensors(twin)):
        raise TraceError(
            "the net copies itself in its own way (__deepcopy__), but devices need smaller copies; "
            "remove that method"
        )
    return twin


def watched(net: nn.Module, batch: Tensor) -> tuple[Trace, str | None]:
    """Watch a net in evaluation and in training mode, where other channels may have to agree.

    Work is that of evaluation. So are the channels that stay, unless parts run in training only:
    noise of the size of its input, for one, follows a cut, which the trial will find.
    """
    trace = new_trace(net, len(batch))
    sizes = {name: tensor.shape for name, tensor in net.state_dict().items()}
    out = _first_look(net, trace, batch)
    trace.pin_all(out, OUTPUT)
    head = _head(trace, out)
    _count_apart(net, trace, batch)
    counted = _trained(trace, out)
    stays = dict(trace.pinned), dict(trace.whole), dict(trace.unruled)
    seen = all((name, 0) in trace.axes for name, p in net.named_parameters() if p.dim() > 1)
    counts = _counts(net)
    with suppress(TraceError, *MISFITS):  # what is missed here, the trial will find
        trace.pin_all(watch(net.train(), trace, batch, apply_rule), OUTPUT)
    _tell_counting([name for name, now in _counts(net).items() if not now.equal(counts[name])])
    _check_sizes(net, sizes)
    if trace.strangers:
        raise TraceError(
            f"{trace.strangers[0]} is not the net's own, so nobody would train it; keep layers in "
            "nn.ModuleList, not in a list, and replace a lambda that holds on to the net by a "
            "method; or set requires_grad=False"
        )
    trace.arithmetic[:], trace.products[:] = counted
    if seen:
        trace.pinned, trace.whole, trace.unruled = stays
    trace.pin_whole()
    return trace, head


def _count_apart(net: nn.Module, trace: Trace, batch: Tensor) -> None:
    """Count work without activations that is done for each sample: learnt queries, first states.

    A larger batch tells them from those that are made once, as computed weights are.
    """
    works = {number: work for number, call in trace.apart.items() if (work := _work(trace, call))}
    sizes: dict[int, list[torch.Size]] = {}

    def measure(second: Trace, call: Call) -> None:
        second.calls += 1
        if second.calls in works:
            sizes[second.calls] = [result.shape for result in call.results()]

    if works:
        with suppress(*MISFITS):  # a net for batches of a fixed size
            watch(copy_net(net), new_trace(net, 3), batch[:1].repeat_interleave(3, 0), measure)
    for number, size in sizes.items():
        call = trace.apart[number]
        if size != [result.shape for result in call.results()]:
            trace.products += works[number]
            for operand in call.operands():
                trace.keep_whole(operand, f"works without the net's input in {call}")


def _work(trace: Trace, call: Call) -> list[Product]:
    """Return what a call multiplies."""
    alone = Trace(trace.names, trace.batch, made=trace.made)
    with suppress(*MISFITS):
        count_products(alone, call)
    if call.name in NORMS:
        alone.products.append(Product(2 * call.out.numel() // trace.batch, 0))
    return alone.products


def _trained(trace: Trace, out: object) -> tuple[list[Arithmetic], list[Product]]:
    """Return the work, without the gradients of what no loss can reach.

    The last residual branch of a WaveNet goes nowhere, and no gradient passes a comparison.
    """
    ahead = [tensor.grad_fn for tensor in tensors_in(out)]
    reached = set()
    while ahead:
        step = ahead.pop()
        if step is not None and step not in reached:
            reached.add(step)
            ahead.extend(before for before, _ in step.next_functions)
    idle = {key for key, ways in trace.made.items() if not reached.intersection(ways)}
    arithmetic = [
        replace(work, first=True, learnt=False) if id(work) in idle else work
        for work in trace.arithmetic
    ]
    products = [
        replace(work, flops=2 * work.macs) if id(work) in idle else work for work in trace.products
    ]
    return arithmetic, products


def _counts(net: nn.Module) -> dict[str, Tensor]:
    """Copy the integers and flags of a net's state, without what batch norms count."""
    return {
        name: tensor.clone()
        for name, tensor in net.state_dict().items()
        if not tensor.is_floating_point() and not name.endswith("num_batches_tracked")
    }


def _tell_counting(names: list[str]) -> None:
    """Say that what a net counts in integers is lost between rounds: they have no mean."""
    if names:
        logger.warning(
            '"%s" changes while the net trains, but integers and flags are not averaged, so every '
            "round begins with the value it has now; make it a float buffer if it has to last",
            names[0],
        )


def _check_sizes(net: nn.Module, sizes: Mapping[str, torch.Size]) -> None:
    """Refuse a net whose tensors are of another size once it has run: no two would fit."""
    for name, tensor in net.state_dict().items():
        if tensor.shape != sizes.get(name, tensor.shape):
            raise TraceError(
                f'the net changes the size of "{name}" from {tuple(sizes[name])} to '
                f"{tuple(tensor.shape)} while it runs; run it once on a batch, in training, before "
                "you hand it over"
            )


def _first_look(net: nn.Module, trace: Trace, batch: Tensor) -> object:
    """Watch a net in evaluation mode, and refuse one whose output says nothing."""
    known = {name for name, _ in net.named_parameters()}
    try:
        out: object = watch(net, trace, batch, apply_rule)
    except TraceError:
        raise
    except Exception as error:  # whatever a user's forward may raise
        raise TraceError(
            f"the net does not run on inputs of shape {tuple(batch.shape)}: {first_line(error)}; "
            f"{_way_on(net)}"
        ) from error
    for name in [name for name, _ in net.named_parameters() if name not in known]:
        raise TraceError(
            f'the net makes "{name}" while it runs; make it in the constructor, or run the net '
            "once on a batch before you hand it over"
        )
    if next(tensors_in(out), None) is None:
        raise TraceError(
            f"the net returns a {type(out).__name__} without tensors; forward() must return "
            "logits, (batch, classes)"
        )
    if all(trace.shadow(tensor) is None for tensor in tensors_in(out)):
        raise TraceError(
            "the net's output does not depend on its input, or by way of calls that cannot be "
            "seen, such as torch.vmap or a scripted function; check forward()"
        )
    return out


def _way_on(net: nn.Module) -> str:
    """Say what to do about a net, or rather a copy of it, that does not run."""
    for name, module in net.named_modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            if getattr(hook, "__closure__", None):
                return (
                    f'copies of the net share the hook of "{name}", which holds on to the first; '
                    "make it a method of the net"
                )
    return "bring inputs that it takes, or another net"


def _head(trace: Trace, out: object) -> str | None:
    """Find the linear layer that made the logits, if one layer alone did."""
    first = next(tensors_in(out))
    shadow = trace.shadow(first)
    logits = slim(shadow[:1]).flatten().tolist() if shadow is not None and shadow.dim() else []
    for producer in trace.producers:
        own = list(producer.channels())
        if logits == own and isinstance(producer.module, nn.Linear):
            roots = {trace.ties.root(channel) for channel in own}
            tied = [n for n in range(len(trace.ties)) if trace.ties.root(n) in roots]
            return producer.where if tied == own else None
    made_by_computed = all(channel == NO_CHANNEL for channel in logits)
    return trace.last_linear[1] if made_by_computed and first is trace.last_linear[0] else None
