"""A whole state laid end to end, so that a GPU cuts and folds it in a few kernels, not hundreds.

Launching a kernel takes a GPU longer than running it on one tensor of a net. Row by row, the kept
entries of a tensor stand in the same order in the small one, so one mask over all entries says
which of them a submodel keeps, and a running count of the mask where each of them is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dapperfl.core.state import State

if TYPE_CHECKING:
    from dapperfl.core.channels import ChannelGraph
    from dapperfl.core.submodel import Submodel

KINDS = frozenset({"cuda"})  # of devices on which states are laid end to end


def wanted(device: torch.device) -> bool:
    """Tell whether a state on a device is better handled end to end than tensor by tensor."""
    return device.type in KINDS


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each tensor of a state is in one long vector, and which channels its entries are of."""

    shapes: Mapping[str, tuple[int, ...]]
    axes: tuple[Tensor, ...]  # (entries,) each: the channel of an entry on its first axis cut, …

    @property
    def entries(self) -> int:
        """How long the vector is."""
        return sum(prod(shape) for shape in self.shapes.values())

    def mask(self, submodel: "Submodel") -> Tensor | None:
        """Return which entries a submodel keeps; None for all of them."""
        if not submodel.kept or not self.axes:
            return None
        if self not in submodel.masks:
            flags = to_device(submodel.flags, self.axes[0].device)
            kept = flags.index_select(0, self.axes[0])
            for channels in self.axes[1:]:
                kept &= flags.index_select(0, channels)
            submodel.masks[self] = kept  # cut by it now, folded by it later
        return submodel.masks[self]

    def repeat(self, values: Sequence[bool]) -> Tensor:
        """Return one value per tensor for each of its entries."""
        sizes = [prod(shape) for shape in self.shapes.values()]
        each, times = torch.tensor(values), torch.tensor(sizes)
        if self.axes:
            each, times = (to_device(tensor, self.axes[0].device) for tensor in (each, times))
        return each.repeat_interleave(times, output_size=self.entries)

    def split(self, vector: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> State:
        """Return the tensors that a vector is made of, as views of it."""
        parts = cut_up(vector, tuple([shapes[name] for name in self.shapes]))
        return dict(zip(self.shapes, parts, strict=True))

    def join(self, state: Mapping[str, Tensor]) -> Tensor:
        """Lay tensors end to end; the result may be their own memory, and is to be read only."""
        return end_to_end([state[name] for name in self.shapes])


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    """Lay tensors end to end, whatever their memory format; to be read only.

    Those that `cut_up` made of a vector are not copied: it is returned.
    """
    base = tensors[0]._base
    if base is not None and _is_made_of(base, tensors):
        return base
    dims = [each.dim() for each in tensors]
    if not any(dims):  # such as counters
        return torch.stack(list(tensors))
    parts = zip(tensors, dims, strict=True)
    return torch.cat([each if dim == 1 else each.reshape(-1) for each, dim in parts])


def _is_made_of(vector: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Tell whether tensors are the parts of a vector, in their order and without gaps."""
    if vector.dim() != 1 or [each for each in tensors if each._base is not vector]:
        return False
    *starts, end = accumulate(map(Tensor.numel, tensors), initial=0)
    return (
        end == vector.numel()
        and starts == list(map(Tensor.storage_offset, tensors))
        and all(map(Tensor.is_contiguous, tensors))
    )


def cut_up(vector: Tensor, shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    """Return views of a vector: tensors of these shapes that lie end to end in it."""
    if not any(shapes):  # such as counters
        return list(vector.unbind())
    parts = list(vector.split_with_sizes(_sizes(shapes)))
    for place in _folded(shapes):
        parts[place] = parts[place].view(shapes[place])
    return parts


@lru_cache(maxsize=64)
def _sizes(shapes: tuple[tuple[int, ...], ...]) -> list[int]:
    return [prod(shape) for shape in shapes]


@lru_cache(maxsize=64)
def _folded(shapes: tuple[tuple[int, ...], ...]) -> list[int]:
    """Return which tensors of these shapes are more, or less, than a piece of a vector."""
    return [place for place, shape in enumerate(shapes) if len(shape) != 1]


@lru_cache(maxsize=16)
def layout(graph: "ChannelGraph", names: tuple[str, ...], device: torch.device) -> Layout:
    """Lay out some tensors of a net's state."""
    shapes = {name: graph.shapes[name] for name in names}
    cut = [[a for a, ids in enumerate(graph.axes[name]) if ids is not None] for name in names]
    always = sum(group.size for group in graph.groups)  # the flag of what is never cut
    axes = []
    for place in range(max(map(len, cut), default=0)):
        parts = [
            _channels(graph, name, axes[place : place + 1], always)
            for name, axes in zip(names, cut, strict=True)
        ]
        axes.append(torch.cat(parts).to(device))
    if device.type == "cuda":  # it is kept, and read on any stream from now on
        torch.cuda.current_stream(device).synchronize()
    return Layout(shapes, tuple(axes))


def _channels(graph: "ChannelGraph", name: str, axis: Sequence[int], always: int) -> Tensor:
    """Return the channel of each entry of a tensor on one axis, if there is one: (entries,)."""
    shape = graph.shapes[name]
    if not axis:
        return torch.full((prod(shape),), always, dtype=torch.int32)
    channels = graph.axes[name][axis[0]]
    assert channels is not None
    spread = [1] * len(shape)
    spread[axis[0]] = -1
    known = torch.where(channels < 0, always, channels).to(torch.int32)
    return known.view(spread).expand(shape).flatten()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device; a GPU is not waited for."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def flat_slice(submodel: "Submodel", state: State) -> State:
    """Do what `Submodel.slice` does to tensors of one type that the graph knows, all at once."""
    plan = layout(submodel.graph, tuple(state), next(iter(state.values())).device)
    places = kept_places(plan, submodel)
    whole = plan.join(state)
    if places is not None:
        whole = whole.index_select(0, places)
    return plan.split(whole, submodel.shapes)


def kept_places(plan: Layout, submodel: "Submodel") -> Tensor | None:
    """Return where in a layout the entries are that a submodel keeps; None if it keeps all."""
    mask = plan.mask(submodel)
    if mask is None:
        return None
    return _where(mask, sum(_sizes(tuple([submodel.shapes[name] for name in plan.shapes]))))


def _where(mask: Tensor, size: int) -> Tensor:
    """Return where a mask is true, without waiting for a GPU to count: (size,)."""
    so_far = mask.cumsum(0, dtype=torch.int32)
    wanted = torch.arange(1, size + 1, dtype=torch.int32, device=mask.device)
    return torch.searchsorted(so_far, wanted, out_int32=True)


def spread(small: Tensor, mask: Tensor) -> Tensor:
    """Put the kept entries of a vector back in their places, with zeros between them."""
    places = (mask.cumsum(0, dtype=torch.int32) - 1).clamp_min_(0)
    return small.index_select(0, places).mul_(mask)
