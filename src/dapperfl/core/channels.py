"""Which tensor axes are the same channels: the graph every submodel is cut along.

`ChannelGraph.trace` runs the net once under a watcher (`tracing`, `layers`), gathers the channels
that must share one fate into groups, and then tries the result: a net with half of its channels
cut off must compute what the masked full net computes. Nothing is known about architectures.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from dapperfl.core.layers import apply_rule
from dapperfl.core.submodel import Submodel
from dapperfl.core.tracing import NO_CHANNEL, Arithmetic, Resize, Ties, Trace, tensors_in, watch
from dapperfl.errors import TraceError

Scope = Literal["inner", "all"]


@dataclass(frozen=True)
class Group:
    """Channels that are cut by one decision, in the order of the layer that first writes them."""

    name: str  # of that layer
    size: int
    offset: int  # of its first channel in the graph's numbering
    stream: bool  # tied by an elementwise add of two producers
    bundle: int = 1  # so many channels stay or go together


@dataclass(frozen=True, eq=False)
class ChannelGraph:
    """The channel groups of one architecture, and where each channel appears in its state."""

    groups: tuple[Group, ...]
    bundles: Mapping[Group, Tensor]  # (bundles, channels of one), indices inside the group
    axes: Mapping[str, tuple[Tensor | None, ...]]  # per state tensor and axis: its channels
    shapes: Mapping[str, tuple[int, ...]]
    parameters: tuple[str, ...]  # the trainable state tensors
    sizes: Mapping[str, int]  # bytes of one entry
    writers: tuple[tuple[str, int], ...]  # convolution and linear weights, and the axis they write
    gates: frozenset[str]  # weights and biases of batch and group norms
    arithmetic: tuple[Arithmetic, ...]
    resizes: tuple[Resize, ...]
    fixed: Mapping[str, str]  # groups that stay full, and why
    head: str | None  # the linear layer that makes the logits

    @classmethod
    def trace(cls, net: nn.Module, example: Tensor) -> "ChannelGraph":
        """Find the channel groups of a net from one example batch.

        Args:
            net: Any module that maps a batch to logits; it is not changed.
            example: A batch of inputs; its first entry is enough.

        Raises:
            TraceError: If an operation has no channel rule, or cut nets do not work.
        """
        net = copy.deepcopy(net).eval()
        batch = example[:1].detach().repeat(2, *[1] * (example.dim() - 1))
        trace, out = watch(net, batch, apply_rule)
        for tensor in tensors_in(out):
            shadow = trace.shadow(tensor)
            if shadow is None:
                raise TraceError("the net's output does not depend on its input; check forward()")
            trace.pin(shadow, "the net's output")
        return _checked(_assemble(net, trace, _head(trace, out)), net, batch)

    @cached_property
    def ungated(self) -> frozenset[Group]:
        """The groups that no batch or group norm scales, so that nothing can silence them."""
        axes = [ids for name in self.gates for ids in self.axes[name] if ids is not None]
        gated = set(torch.cat(axes).tolist()) if axes else set()
        return frozenset(g for g in self.groups if g.offset not in gated)

    def full(self) -> Submodel:
        """Return the submodel that keeps everything."""
        return Submodel(self, {})

    def in_scope(self, scope: Scope) -> tuple[Group, ...]:
        """Return the groups that may lose channels: `inner` leaves residual streams alone."""
        if scope not in ("inner", "all"):
            raise ValueError(f'unknown scope "{scope}"; choose "inner" or "all"')
        return tuple(g for g in self.groups if scope == "all" or not g.stream)

    def group(self, name: str) -> Group:
        """Return a group by its name."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f'no channel group "{name}"; there are {[g.name for g in self.groups]}')


def _head(trace: Trace, out: object) -> str | None:
    """Find the linear layer that made the logits, if one did."""
    logits = next(tensors_in(out))
    shadow = trace.shadow(logits)
    channel = int(shadow.amax()) if shadow is not None else NO_CHANNEL
    for producer in trace.producers:
        if producer.start <= channel < producer.start + producer.count:
            return producer.name if isinstance(producer.module, nn.Linear) else None
    return None


def _assemble(net: nn.Module, trace: Trace, head: str | None) -> ChannelGraph:
    """Turn ties between channels into groups, and channel numbers into positions in them."""
    families = _families(trace)
    number = torch.full((len(trace.ties.parent) + 1,), NO_CHANNEL)  # the last entry: no channel
    groups: list[Group] = []
    bundles: dict[Group, Tensor] = {}
    fixed: dict[str, str] = {}
    for name, members in families:
        parts, reason = _bundles_of(trace, members)
        if reason:
            fixed[name] = reason
            continue
        roots = sorted({trace.ties.root(member) for member in members})
        position = {root: index for index, root in enumerate(roots)}
        offset = sum(group.size for group in groups)
        stream = any(member in trace.streams for member in members)
        group = Group(name, len(roots), offset, stream, len(parts[0]))
        bundles[group] = torch.tensor([[position[root] for root in part] for part in parts])
        groups.append(group)
        for member in members:
            number[member] = offset + position[trace.ties.root(member)]
    state = net.state_dict()
    axes = {
        name: tuple(_numbered(trace.axes.get((name, axis)), number) for axis in range(tensor.dim()))
        for name, tensor in state.items()
    }
    return ChannelGraph(
        groups=tuple(groups),
        bundles=bundles,
        axes=axes,
        shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
        parameters=tuple(name for name, _ in net.named_parameters()),
        sizes={name: tensor.element_size() for name, tensor in state.items()},
        writers=tuple(trace.writers),
        gates=frozenset(trace.gates),
        arithmetic=tuple(trace.arithmetic),
        resizes=tuple(replace(r, channels=number[r.channels]) for r in trace.resizes),
        fixed=fixed,
        head=head,
    )


def _numbered(channels: Tensor | None, number: Tensor) -> Tensor | None:
    """Translate an axis to the graph's numbering; None if the axis is never cut."""
    if channels is None:
        return None
    positions = number[channels]
    return positions if bool((positions >= 0).any()) else None


def _families(trace: Trace) -> list[tuple[str, list[int]]]:
    """Gather channels connected through a producer, a tie or a bundle, in order of appearance."""
    kin = Ties()
    kin.grow(len(trace.ties.parent))
    for producer in trace.producers:
        for channel in range(producer.start, producer.start + producer.count):
            kin.unite(producer.start, channel)
    for channel in range(len(kin.parent)):
        kin.unite(channel, trace.ties.root(channel))
        kin.unite(channel, trace.bundles.root(channel))
    names = {kin.root(p.start): p.name for p in reversed(trace.producers)}
    families: dict[int, list[int]] = {}
    for channel in range(len(kin.parent)):
        families.setdefault(kin.root(channel), []).append(channel)
    return [(names[root], members) for root, members in families.items()]


def _bundles_of(trace: Trace, members: list[int]) -> tuple[list[list[int]], str]:
    """Return what stays or goes together in a family, or why the family stays full."""
    for member in members:
        if member in trace.pinned:
            return [], trace.pinned[member]
    together = Ties()
    together.grow(len(trace.ties.parent))
    for member in members:
        together.unite(member, trace.ties.root(member))
        together.unite(member, trace.bundles.root(member))
    parts: dict[int, set[int]] = {}
    for member in members:
        parts.setdefault(together.root(member), set()).add(trace.ties.root(member))
    if len(parts) == 1:
        return [], "all of its channels stay or go together"
    if len({len(part) for part in parts.values()}) > 1:
        return [], "its bundles differ in size"
    return [sorted(part) for part in parts.values()], ""


def _checked(graph: ChannelGraph, net: nn.Module, batch: Tensor) -> ChannelGraph:
    """Try the graph on the net itself; groups whose sizes are fixed in code stay full."""
    reason = _fault(graph, graph.groups, net, batch)
    if not reason:
        return graph
    fixed = {g: fault for g in graph.groups if (fault := _fault(graph, (g,), net, batch))}
    rest = _without(graph, fixed)
    left = _fault(rest, rest.groups, net, batch)
    if left or not fixed:
        raise TraceError(f"a net with fewer channels does not work: {left or reason}")
    return rest


def _fault(
    graph: ChannelGraph, groups: tuple[Group, ...], net: nn.Module, batch: Tensor
) -> str | None:
    """Cut half of each group off and compare with the masked net; say what is wrong."""
    kept = {}
    for group in groups:
        rows = graph.bundles[group]
        kept[group] = rows[: (len(rows) + 1) // 2].flatten().sort().values
    submodel = Submodel(graph, kept)
    masked = copy.deepcopy(net)
    masked.load_state_dict(submodel.mask(net.state_dict()))
    try:
        with torch.no_grad():
            small = list(tensors_in(submodel.shrink(net)(batch)))
            large = list(tensors_in(masked(batch)))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        names = ", ".join(group.name for group in groups)
        return f"cutting {names} fails, a size is fixed in code: {str(error).splitlines()[0]}"
    for ours, theirs in zip(small, large, strict=True):
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            return f"cutting {', '.join(g.name for g in groups)} changes what the net computes"
    return None


def _without(graph: ChannelGraph, fixed: Mapping[Group, str]) -> ChannelGraph:
    """Return the graph with some of its groups kept full."""
    number = torch.full((sum(g.size for g in graph.groups) + 1,), NO_CHANNEL)
    groups: list[Group] = []
    bundles: dict[Group, Tensor] = {}
    for group in graph.groups:
        if group not in fixed:
            moved = replace(group, offset=sum(g.size for g in groups))
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
        resizes=tuple(replace(r, channels=number[r.channels]) for r in graph.resizes),
        fixed={**graph.fixed, **{group.name: why for group, why in fixed.items()}},
    )
