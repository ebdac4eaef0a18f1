"""Which tensor axes are the same channels: the graph every submodel is cut along.

`ChannelGraph.trace` runs the net once under a watcher (`tracing`, `layers`), gathers the channels
that must share one fate into groups, and then tries the result (`trial`): a net with half of its
channels, or with as few as can be, must compute what the masked net computes. No architecture is
known by name.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dapperfl.core.calls import tensors_in
from dapperfl.core.families import families
from dapperfl.core.layers import apply_rule
from dapperfl.core.shadows import NO_CHANNEL, slim
from dapperfl.core.submodel import Submodel, copy_net
from dapperfl.core.tracing import (
    Arithmetic,
    Product,
    Resize,
    Trace,
    named_tensors,
    new_trace,
    watch,
)
from dapperfl.core.trial import MISFITS, Trial, Verdict, first_line, private_rng
from dapperfl.errors import TraceError

Scope = Literal["auto", "inner", "all"]
# Streams of 64 and of 32 channels lose nothing by being cut, those of 16 do: docs/research-log.md.
WIDE = 32
OUTPUT = "the net's output"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Group:
    """Channels that are cut by one decision, in the order of the layer that first writes them.

    Channels that always stay, such as those a shortcut pads with zeros, are not counted.
    """

    name: str  # of that layer
    size: int
    offset: int  # of its first channel in the graph's numbering
    stream: bool  # tied by an elementwise add of two producers
    bundle: int = 1  # so many channels stay or go together
    least: int = 1  # bundles that must stay: `x.squeeze()` needs two


@dataclass(frozen=True, eq=False)
class ChannelGraph:
    """The channel groups of one architecture, and where each channel appears in its state."""

    groups: tuple[Group, ...]
    bundles: Mapping[Group, Tensor]  # (bundles, channels of one), indices inside the group
    axes: Mapping[str, tuple[Tensor | None, ...]]  # per tensor and axis: its channels; -1: stays
    shapes: Mapping[str, tuple[int, ...]]
    parameters: tuple[str, ...]  # the trainable state tensors, each once
    learnt: tuple[str, ...]  # the same, those that layers share under each of their names
    sizes: Mapping[str, int]  # bytes of one entry
    writers: tuple[tuple[str, int], ...]  # learnt convolution and linear weights, the axis written
    norms: frozenset[str]  # weights and biases of batch and group norms
    gates: frozenset[str]  # those of them that learn: a frozen one stays what it is
    arithmetic: tuple[Arithmetic, ...]
    products: tuple[Product, ...]
    resizes: tuple[Resize, ...]
    fixed: Mapping[str, str]  # groups and calls that stay full, and why
    head: str | None  # the linear layer that makes the logits

    @classmethod
    def trace(cls, net: nn.Module, example: Tensor) -> "ChannelGraph":
        """Find the channel groups of a net from one example batch.

        Args:
            net: Any module that maps a batch to logits; it is not changed.
            example: A batch of inputs; its first entry is enough.

        Raises:
            TraceError: If values of activations leave torch, or the net or cut ones do not work.
        """
        _check_parts(net)
        net = _own_copy(net).eval()
        learnable = list(filter(Tensor.is_floating_point, net.parameters()))
        if not any(parameter.requires_grad for parameter in learnable):  # a net to look at
            for parameter in learnable:
                parameter.requires_grad_(True)
        batch = example[:1].detach().repeat(2, *[1] * (example.dim() - 1))
        with private_rng(batch.device):
            trace, head = _watched(copy_net(net), batch)
            if trace.unruled:
                logger.warning(
                    "part of the net stays uncut: %s", _listed(trace.unruled.values(), 1)
                )
        graph = _assemble(net, trace, head)
        return _restricted(graph, Trial(graph, net, batch).verdict())

    def __repr__(self) -> str:
        channels = sum(group.size for group in self.groups)
        return f"ChannelGraph({channels} channels in {len(self.groups)} groups)"

    @cached_property
    def ungated(self) -> frozenset[Group]:
        """The groups that no learnt norm scales, so that nothing can silence them."""
        axes = [ids for name in self.gates for ids in self.axes[name] if ids is not None]
        gated = set(torch.cat(axes).tolist()) if axes else set()
        return frozenset(g for g in self.groups if g.offset not in gated)

    @cached_property
    def _cut_axes(self) -> tuple[list[tuple[str, int]], Tensor, Tensor]:
        """All axes of the state that can be cut, their channels end to end, and their ends."""
        found = [
            (name, axis, ids)
            for name in self.shapes
            for axis, ids in enumerate(self.axes[name])
            if ids is not None
        ]
        ends = torch.tensor([len(ids) for *_, ids in found], dtype=torch.int64).cumsum(0)
        channels = torch.cat([ids for *_, ids in found]) if found else ends
        return [(name, axis) for name, axis, _ in found], channels, ends

    def count_kept(self, flags: Tensor) -> tuple[list[tuple[str, int]], list[int]]:
        """Count what each axis keeps of its entries, given one truth value per channel."""
        places, channels, ends = self._cut_axes
        if not places:
            return [], []
        before = flags[channels].cumsum(0)[ends - 1]
        return places, before.diff(prepend=before.new_zeros(1)).tolist()

    def why_fixed(self) -> str:
        """Say in a line what stays full and why; the output's channels always do."""
        return _listed(why for why in self.fixed.values() if why != OUTPUT)

    def full(self) -> Submodel:
        """Return the submodel that keeps everything."""
        return Submodel(self, {})

    def in_scope(self, scope: Scope) -> tuple[Group, ...]:
        """Return the groups that may lose channels.

        `inner` leaves residual streams alone, `all` does not; `auto` leaves them alone unless each
        of them has at least `WIDE` channels, and norms that can silence those.
        """
        if scope not in ("auto", "inner", "all"):
            raise ValueError(f'unknown scope "{scope}"; choose "auto", "inner" or "all"')
        streams = [group for group in self.groups if group.stream]
        wide = all(group.size >= WIDE and group not in self.ungated for group in streams)
        cuts_streams = scope == "all" or (scope == "auto" and wide)
        return tuple(group for group in self.groups if cuts_streams or not group.stream)

    def group(self, name: str) -> Group:
        """Return a group by its name."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f'no channel group "{name}"; there are {[g.name for g in self.groups]}')


def _listed(reasons: Iterable[str], most: int = 2) -> str:
    """Join a few reasons, and count the others."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - most} more in ChannelGraph.fixed"
    return "; ".join(different[:most]) + (more if len(different) > most else "")


def _check_parts(net: nn.Module) -> None:
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


def _own_copy(net: nn.Module) -> nn.Module:
    """Copy a net as a cut does, with tensors of our making in the places of its own."""
    memo: dict[int, object] = {}
    for _, tensor in named_tensors(net):
        ours = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(ours, tensor.requires_grad) if is_parameter else ours
    given = {id(ours) for ours in memo.values()}
    try:
        twin = copy_net(net, memo)
    except (TypeError, RuntimeError) as error:
        raise TraceError(
            f"the net cannot be copied: {first_line(error)}; every device needs one of its own"
        ) from error
    if any(id(tensor) not in given for _, tensor in named_tensors(twin)):
        raise TraceError(
            "the net copies itself in its own way (__deepcopy__), but devices need smaller copies; "
            "remove that method"
        )
    return twin


def _watched(net: nn.Module, batch: Tensor) -> tuple[Trace, str | None]:
    """Watch a net in evaluation and in training mode, where other channels may have to agree.

    Work is that of evaluation. So are the channels that stay, unless parts run in training only:
    noise of the size of its input, for one, follows a cut, which the trial will find.
    """
    trace = new_trace(net, len(batch))
    sizes = {name: tensor.shape for name, tensor in net.state_dict().items()}
    out = _first_look(net, trace, batch)
    trace.pin_all(out, OUTPUT)
    head = _head(trace, out)
    counted = list(trace.arithmetic), list(trace.products)
    stays = dict(trace.pinned), dict(trace.whole), dict(trace.unruled)
    seen = all((name, 0) in trace.axes for name, p in net.named_parameters() if p.dim() > 1)
    with suppress(TraceError, *MISFITS):  # what is missed here, the trial will find
        trace.pin_all(watch(net.train(), trace, batch, apply_rule), OUTPUT)
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


def _assemble(net: nn.Module, trace: Trace, head: str | None) -> ChannelGraph:
    """Turn families into groups, and channel numbers into positions in them."""
    number = torch.full((len(trace.ties) + 1,), NO_CHANNEL)  # the last entry: no channel
    groups: list[Group] = []
    bundles: dict[Group, Tensor] = {}
    fixed = dict(trace.unruled)
    for family in families(trace):
        if family.reason:
            fixed[family.name] = family.reason
            continue
        rows = torch.tensor(family.bundles)
        offset = sum(group.size for group in groups)
        group = Group(family.name, rows.numel(), offset, family.stream, rows.shape[1])
        groups.append(group)
        bundles[group] = rows
        for channel, position in family.positions.items():
            number[channel] = offset + position
    state, parameters = net.state_dict(), tuple(name for name, _ in net.named_parameters())
    learnt = dict(net.named_parameters(remove_duplicate=False))
    return ChannelGraph(
        groups=tuple(groups),
        bundles=bundles,
        axes={
            name: tuple(_numbered(trace.axes.get((name, d)), number) for d in range(tensor.dim()))
            for name, tensor in named_tensors(net)
        },
        shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
        parameters=parameters,
        learnt=tuple(learnt),
        sizes={name: tensor.element_size() for name, tensor in state.items()},
        writers=tuple(writer for writer in trace.writers if writer[0] in parameters),
        norms=frozenset(trace.norms),
        gates=frozenset(n for n in trace.norms if n in learnt and learnt[n].requires_grad),
        arithmetic=tuple(_renumbered(work, number) for work in _work(net, trace)),
        products=tuple(trace.products),
        resizes=tuple(replace(r, channels=number[r.channels]) for r in trace.resizes.values()),
        fixed=fixed,
        head=head,
    )


def _numbered(channels: Tensor | None, number: Tensor) -> Tensor | None:
    """Translate an axis to the graph's numbering; None if the axis is never cut."""
    if channels is None:
        return None
    positions = number[channels]
    return positions if bool((positions >= 0).any()) else None


def _work(net: nn.Module, trace: Trace) -> list[Arithmetic]:
    """Return the work of all layers; that of filters outside the state without their names."""
    state, tensors = net.state_dict(), dict(named_tensors(net))
    return [
        work if work.weight in state else _nameless(work, trace, tensors[str(work.weight)])
        for work in trace.arithmetic
    ]


def _nameless(work: Arithmetic, trace: Trace, weight: Tensor) -> Arithmetic:
    """Count a weight's own axes among those that work runs along."""
    axes = [trace.axes.get((str(work.weight), axis)) for axis in range(weight.dim())]
    along = (*work.along, *(channels for channels in axes if channels is not None))
    return replace(work, weight=None, positions=work.positions * weight.numel(), along=along)


def _renumbered(work: Arithmetic, number: Tensor) -> Arithmetic:
    """Translate the axes that work runs along; those never cut are left out."""
    axes = [_numbered(channels, number) for channels in work.along]
    return replace(work, along=tuple(ids for ids in axes if ids is not None))


def _restricted(graph: ChannelGraph, verdict: Verdict) -> ChannelGraph:
    """Return the graph with what a trial has found: some groups stay full, or keep a few."""
    fixed = verdict.unfit
    number = torch.full((sum(g.size for g in graph.groups) + 1,), NO_CHANNEL)
    groups: list[Group] = []
    bundles: dict[Group, Tensor] = {}
    for group in graph.groups:
        if group not in fixed:
            least = verdict.least[group]
            moved = replace(group, offset=sum(g.size for g in groups), least=least)
            number[group.offset : group.offset + group.size] = torch.arange(
                moved.offset, moved.offset + moved.size
            )
            groups.append(moved)
            bundles[moved] = graph.bundles[group]
    return replace(
        graph,
        groups=tuple(groups),
        bundles=bundles,
        axes={
            name: tuple(_numbered(channels, number) for channels in axes)
            for name, axes in graph.axes.items()
        },
        arithmetic=tuple(_renumbered(work, number) for work in graph.arithmetic),
        resizes=tuple(replace(r, channels=number[r.channels]) for r in graph.resizes),
        fixed={**graph.fixed, **{group.name: why for group, why in fixed.items()}},
    )
