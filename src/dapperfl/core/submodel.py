"""M_i as indices, never as a dense mask: which channels of each group a smaller net keeps."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dapperfl.core.calls import tensors_in
from dapperfl.core.flat import Layout, flat_slice, wanted
from dapperfl.core.layers import refresh_sizes
from dapperfl.core.state import State
from dapperfl.core.tracing import Resize, named_tensors
from dapperfl.errors import MessageError

if TYPE_CHECKING:
    from dapperfl.core.channels import ChannelGraph, Group

Index = tuple[tuple[int, Tensor], ...]  # (axis, kept positions), only for axes that lose some


@dataclass(frozen=True, eq=False)
class Submodel:
    """The channels kept of each group, as sorted indices; a group not named is kept whole.

    `slice` and `scatter` work on anything shaped like the state: weights, buffers, gradients,
    momentum. Names that the graph does not know pass through unchanged.
    """

    graph: "ChannelGraph"
    kept: Mapping["Group", Tensor]
    masks: dict[Layout, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for group, channels in self.kept.items():
            _check(self.graph, group, channels)

    def __repr__(self) -> str:
        cut = [f"{g.name}: {len(channels)} of {g.size}" for g, channels in self.kept.items()]
        return f"Submodel({', '.join(cut) or 'whole'})"

    def channels(self, group: "Group") -> Tensor:
        """Return the kept channels of a group."""
        kept = self.kept.get(group)
        return torch.arange(group.size) if kept is None else kept

    @cached_property
    def flags(self) -> Tensor:
        """One truth value per channel in the graph's numbering, and one for axes never cut."""
        flags = torch.ones(sum(group.size for group in self.graph.groups) + 1, dtype=torch.bool)
        for group, channels in self.kept.items():
            flags[group.offset : group.offset + group.size] = False
            flags[group.offset + channels] = True
        return flags  # NO_CHANNEL is -1: the last entry, always kept

    @cached_property
    def indices(self) -> Mapping[str, Index]:
        """Per state tensor, the axes that lose channels and what they keep."""
        return {
            name: tuple(
                (axis, self.flags[channels].nonzero().flatten())
                for axis, channels in enumerate(axes)
                if channels is not None and not bool(self.flags[channels].all())
            )
            for name, axes in self.graph.axes.items()
        }

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every state tensor of the smaller net."""
        if not self.kept:
            return self.graph.shapes
        shapes = {name: list(shape) for name, shape in self.graph.shapes.items()}
        for (name, axis), count in zip(*self.graph.count_kept(self.flags), strict=True):
            shapes[name][axis] = count
        return {name: tuple(shape) for name, shape in shapes.items()}

    @cached_property
    def signature(self) -> tuple[tuple[int, ...], ...]:
        """All sizes of the smaller net: two nets of one signature differ in their weights only."""
        channels, ends = _resized(self.graph)
        so_far = [0, *self.flags[channels].cumsum(0).tolist()]  # all at once: this is asked often
        return (*self.shapes.values(), tuple([so_far[end] for end in ends]))

    def slice(self, state: State, *, flat: bool | None = None) -> State:
        """Cut a full state down to the kept channels.

        Args:
            state: Full tensors by name.
            flat: Cut the whole state at once, laid end to end: the same numbers in a few large
                steps, which a GPU wants; by default where the state is on one.
        """
        known = self.graph.shapes
        whole = {n: t for n, t in state.items() if n in known and t.dtype.is_floating_point}
        kinds = {(tensor.dtype, tensor.device) for tensor in whole.values()}
        if flat is None:
            flat = all(wanted(device) for _, device in kinds)
        if len(kinds) != 1 or not flat:
            return {name: self._cut(name, tensor) for name, tensor in state.items()}
        for name in [n for n, t in whole.items() if t.shape != known[n]]:
            raise _misfit(name, whole[name].shape, known[name])
        cut = flat_slice(self, whole)
        return {n: cut[n] if n in cut else self._cut(n, tensor) for n, tensor in state.items()}

    def scatter(self, small: State, into: State) -> State:
        """Return `into` with the kept entries replaced by those of a small state."""
        result = {}
        for name, tensor in into.items():
            result[name] = tensor.clone()
            if name in small:
                self.check_shape(name, small[name])
                block = kept_block(self.indices.get(name, ()), tensor)
                result[name][block] = small[name].to(tensor)
        return result

    def mask(self, state: State) -> State:
        """Zero every entry that the smaller net does not have."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        return self.scatter(self.slice(state), zeros)

    def shrink(self, net: nn.Module) -> nn.Module:
        """Return a physically smaller copy of a net; draws no random numbers."""
        names = {id(tensor): name for name, tensor in named_tensors(net)}
        memo: dict[int, object] = {}
        for name, tensor in named_tensors(
            net
        ):  # deepcopy finds the small tensors instead of copying
            if names[id(tensor)] == name:
                small = self._cut(name, tensor.detach()).clone()
                if isinstance(tensor, nn.Parameter):
                    small = nn.Parameter(small, requires_grad=tensor.requires_grad)
                memo[id(tensor)] = small
        smaller = copy_net(net, memo)
        for resize in self.graph.resizes:
            count = int(self.flags[resize.channels].sum()) // resize.divisor
            _set_number(smaller.get_submodule(resize.where), resize, count)
        for module in smaller.modules():
            refresh_sizes(module)
        return smaller

    def rest(self, net: nn.Module) -> State:
        """Return the small net's buffers that are not part of its state, such as tables."""
        known = self.graph.shapes
        return {n: self._cut(n, t) for n, t in net.named_buffers() if n not in known}

    def check_shape(self, name: str, small: Tensor) -> None:
        """Refuse a small tensor that is not shaped like this submodel's."""
        expected = self.shapes.get(name)
        if expected is not None and tuple(small.shape) != expected:
            raise _misfit(name, small.shape, expected)

    def to_lists(self) -> dict[str, list[int]]:
        """Return the kept channels as plain lists, for files and messages."""
        return {group.name: self.channels(group).tolist() for group in self.graph.groups}

    @classmethod
    def from_lists(cls, graph: "ChannelGraph", lists: Mapping[str, list[int]]) -> "Submodel":
        """Read back what `to_lists` wrote."""
        known = {group.name: group for group in graph.groups}
        for name in lists:
            if name not in known:
                raise MessageError(f'no channel group "{name}" in this net')
        return cls(graph, {known[name]: torch.tensor(kept) for name, kept in lists.items()})

    def _check_full(self, name: str, tensor: Tensor) -> None:
        shape = self.graph.shapes.get(name)
        if shape is not None and tuple(tensor.shape) != shape:
            raise _misfit(name, tensor.shape, shape)

    def _cut(self, name: str, tensor: Tensor) -> Tensor:
        self._check_full(name, tensor)
        if all(channels is None for channels in self.graph.axes.get(name, ())):
            return tensor  # nothing to look up, such as a counter
        for axis, index in self.indices.get(name, ()):
            tensor = tensor.index_select(axis, index.to(tensor.device))
        return tensor


def _set_number(module: nn.Module, resize: Resize, number: int) -> None:
    value: Any = number
    if resize.place is not None:
        old = getattr(module, resize.attribute)
        value = type(old)(number if i == resize.place else each for i, each in enumerate(old))
    setattr(module, resize.attribute, value)


@lru_cache(maxsize=16)
def _resized(graph: "ChannelGraph") -> tuple[Tensor, list[int]]:
    """Return the channels behind all sizes of modules end to end, and where those of each end."""
    channels = [each.channels for each in graph.resizes]
    ends = list(accumulate(map(len, channels)))
    return torch.cat([torch.zeros(0, dtype=torch.int64), *channels]), ends


def copy_net(net: nn.Module, memo: dict[int, object] | None = None) -> nn.Module:
    """Copy a net, even one that holds on to activations of its last training step."""
    memo = {} if memo is None else memo
    for module in net.modules():
        for value in vars(module).values():
            if isinstance(value, torch.jit.ScriptFunction):  # cannot be copied, and need not be
                memo[id(value)] = value
        for value in tensors_in(vars(module)):
            if not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(net, memo)


def kept_block(index: Index, tensor: Tensor) -> tuple[Any, ...]:
    """Return what picks the kept block of a full tensor by advanced indexing."""
    if not index:
        return (...,)
    cut = dict(index)
    low, high = min(cut), max(cut)
    block: list[Any] = [slice(None)] * low
    for axis in range(low, high + 1):  # without gaps, or indexing would move axes to the front
        kept = cut[axis] if axis in cut else torch.arange(tensor.shape[axis])
        block.append(kept.to(tensor.device).reshape([-1] + [1] * (high - axis)))
    return tuple(block)


def _misfit(name: str, found: torch.Size, expected: tuple[int, ...]) -> MessageError:
    return MessageError(f'"{name}" has shape {tuple(found)}, expected {expected}')


def _check(graph: "ChannelGraph", group: "Group", channels: Tensor) -> None:
    """Refuse kept channels that no net could have."""
    if group not in graph.bundles:
        raise MessageError(f'no channel group "{group.name}" in this net')
    place = f'kept channels of group "{group.name}"'
    if channels.dim() != 1 or channels.dtype != torch.int64 or not len(channels):
        raise MessageError(f"{place} must be a non-empty list of integers")
    if int(channels.min()) < 0 or int(channels.max()) >= group.size:
        raise MessageError(f"{place} must lie between 0 and {group.size - 1}")
    if not bool((channels[1:] > channels[:-1]).all()):
        raise MessageError(f"{place} must be sorted, without repeats")
    if group.bundle > 1:
        flags = torch.zeros(group.size, dtype=torch.bool)
        flags[channels] = True
        rows = flags[graph.bundles[group]]
        if not torch.equal(rows.any(1), rows.all(1)):
            raise MessageError(f"{place} must hold whole bundles of {group.bundle}")
