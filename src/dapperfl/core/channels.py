"""Which tensor axes are the same channels: the graph every submodel is cut along.

`ChannelGraph.trace` runs the net once under a watcher (`look`, `tracing`, `layers`), gathers the
channels that must share one fate into groups, and then tries the result (`trial`): a net with half
of its channels, or with as few as can be, must compute what the masked net computes. No
architecture is known by name.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from dapperfl.core.families import families
from dapperfl.core.look import OUTPUT, check_parts, own_copy, watched
from dapperfl.core.shadows import NO_CHANNEL
from dapperfl.core.submodel import Submodel, copy_net
from dapperfl.core.tracing import Arithmetic, Product, Resize, Trace, named_tensors
from dapperfl.core.trial import Trial, Verdict, private_rng

Scope = Literal["auto", "inner", "all"]
# Streams of 64 and of 32 channels lose nothing by being cut, those of 16 do: docs/research-log.md.
WIDE = 32
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
    parameters: tuple[str, ...]  # of the state, each once
    named: tuple[str, ...]  # the same, those that layers share under each of their names
    frozen: frozenset[str]  # those of them that do not learn
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
        check_parts(net)
        net = own_copy(net).eval()
        learnable = list(filter(Tensor.is_floating_point, net.parameters()))
        if not any(parameter.requires_grad for parameter in learnable):  # a net to look at
            for parameter in learnable:
                parameter.requires_grad_(True)
        batch = example[:1].detach().repeat(2, *[1] * (example.dim() - 1))
        with private_rng(batch.device):
            trace, head = watched(copy_net(net), batch)
            if trace.unruled:
                logger.warning(
                    "part of the net stays uncut: %s", _listed(trace.unruled.values(), 1)
                )
        numbering = _numbering(trace)
        graph = _assemble(net, trace, numbering, head)
        verdict = Trial(graph, net, batch).verdict()
        if guesses := _guesses(trace, numbering, verdict):
            guessed = replace(graph, resizes=graph.resizes + guesses)
            other = Trial(guessed, net, batch).verdict()
            if sum(g.size for g in other.unfit) < sum(g.size for g in verdict.unfit):
                graph, verdict = guessed, other
        return _restricted(graph, verdict)

    def __repr__(self) -> str:
        channels = sum(group.size for group in self.groups)
        return f"ChannelGraph({channels} channels in {len(self.groups)} groups)"

    @cached_property
    def learnt(self) -> tuple[str, ...]:
        """The parameters that learn, under all their names."""
        return tuple(name for name in self.named if name not in self.frozen)

    @cached_property
    def ungated(self) -> frozenset[Group]:
        """The groups that no learnt norm scales, so that nothing can silence them."""
        axes = [ids for name in self.gates for ids in self.axes[name] if ids is not None]
        gated = set(torch.cat(axes).tolist()) if axes else set()
        return frozenset(g for g in self.groups if g.offset not in gated)

    @cached_property
    def unscaled(self) -> frozenset[str]:
        """What learns to write or to read channels of ungated groups."""
        inside = {g.offset + place for g in self.ungated for place in range(g.size)}
        return frozenset(
            name
            for name in self.learnt
            for ids in self.axes[name]
            if ids is not None and not inside.isdisjoint(ids.tolist())
        )

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
        of them has at least `WIDE` channels, and norms that can silence those. A budget that cannot
        be met then has the whole scope; see `keep_for_budget`.
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


class _Numbering(NamedTuple):
    """The groups of a graph, and the positions in them of what a trace has numbered."""

    groups: tuple[Group, ...]
    bundles: dict[Group, Tensor]
    fixed: dict[str, str]
    number: Tensor  # of each channel; the last entry: no channel


def _numbering(trace: Trace) -> _Numbering:
    """Turn families into groups."""
    number = torch.full((len(trace.ties) + 1,), NO_CHANNEL)
    bundles: dict[Group, Tensor] = {}
    fixed = dict(trace.unruled)
    for family in families(trace):
        if family.reason:
            fixed[family.name] = family.reason
            continue
        rows = torch.tensor(family.bundles)
        offset = sum(group.size for group in bundles)
        group = Group(family.name, rows.numel(), offset, family.stream, rows.shape[1])
        bundles[group] = rows
        for channel, position in family.positions.items():
            number[channel] = offset + position
    return _Numbering(tuple(bundles), bundles, fixed, number)


def _assemble(
    net: nn.Module, trace: Trace, numbering: _Numbering, head: str | None
) -> ChannelGraph:
    """Turn channel numbers into positions in groups."""
    groups, bundles, fixed, number = numbering
    state, parameters = net.state_dict(), tuple(name for name, _ in net.named_parameters())
    named = dict(net.named_parameters(remove_duplicate=False))
    frozen = frozenset(name for name, tensor in named.items() if not tensor.requires_grad)
    return ChannelGraph(
        groups=groups,
        bundles=bundles,
        axes={
            name: tuple(_numbered(trace.axes.get((name, d)), number) for d in range(tensor.dim()))
            for name, tensor in named_tensors(net)
        },
        shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
        parameters=parameters,
        named=tuple(named),
        frozen=frozen,
        sizes={name: tensor.element_size() for name, tensor in state.items()},
        writers=tuple(writer for writer in trace.writers if writer[0] in parameters),
        norms=frozenset(trace.norms),
        gates=frozenset(n for n in trace.norms if n in named) - frozen,
        arithmetic=tuple(_renumbered(work, number) for work in _work(net, trace)),
        products=tuple(trace.products),
        resizes=tuple(replace(r, channels=number[r.channels]) for r in trace.resizes.values()),
        fixed=fixed,
        head=head,
    )


def _guesses(trace: Trace, numbering: _Numbering, verdict: Verdict) -> tuple[Resize, ...]:
    """Return the attributes that might have to follow groups which cannot be cut as it is."""
    unfit = {n for g in verdict.unfit for n in range(g.offset, g.offset + g.size)}
    numbered = (
        replace(guess, channels=numbering.number[guess.channels])
        for guess in trace.guesses.values()
        if (guess.where, guess.attribute) not in trace.resizes
    )
    return tuple(guess for guess in numbered if unfit.intersection(guess.channels.tolist()))


def _numbered(channels: Tensor | None, number: Tensor) -> Tensor | None:
    """Translate an axis to the graph's numbering; None if the axis is never cut."""
    if channels is None:
        return None
    positions = number[channels]
    return positions if bool((positions >= 0).any()) else None


def _work(net: nn.Module, trace: Trace) -> list[Arithmetic]:
    """Return the work of all layers; that of filters outside the state without their names."""
    state = net.state_dict()
    loose = {name: tensor for name, tensor in named_tensors(net) if name not in state}
    return [
        _nameless(work, trace, loose[work.weight]) if work.weight in loose else work
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
