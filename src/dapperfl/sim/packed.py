"""Many tensors in one block of memory: copied at once, and at addresses that never change.

Messages hold their tensors row by row and end to end, a block may hold them turned and with gaps.
One list of numbers says which entry is where, so that a GPU fills or copies a block in one step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import torch
from torch import Tensor

from dapperfl.core.flat import cut_up, end_to_end, kept_places, layout, wanted
from dapperfl.core.state import State, overwrite
from dapperfl.core.submodel import Submodel
from dapperfl.errors import RunError

ALIGNED = 64  # entries: kernels of a GPU want tensors to begin at round addresses
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Form:
    """Where tensors of given shapes are in a block; slots of one shape share it."""

    shapes: Shapes
    channels_last: bool
    device: torch.device

    @cached_property
    def rooms(self) -> list[int]:
        """How many entries of the block each tensor takes, its gap included."""
        return [-(-prod(shape) // ALIGNED) * ALIGNED for shape in self.shapes]

    def views(self, block: Tensor) -> list[Tensor]:
        """Return the tensors in a block."""
        parts = zip(torch.split(block, self.rooms), self.shapes, strict=True)
        return [_shaped(part[: prod(shape)], shape, self.channels_last) for part, shape in parts]

    @cached_property
    def places(self) -> Tensor:
        """Where in the block each entry is, in the order of messages: (entries,)."""
        return _settled(self._places, self.device)

    @cached_property
    def sources(self) -> Tensor:
        """Which entry stands at each place of the block, the first one in gaps: (block,)."""
        found = torch.zeros(sum(self.rooms), dtype=torch.int32)
        found[self._places] = torch.arange(len(self._places), dtype=torch.int32)
        return _settled(found, self.device)

    @property
    def _places(self) -> Tensor:
        numbers = torch.arange(sum(self.rooms), dtype=torch.int32)
        return torch.cat([view.reshape(-1) for view in self.views(numbers)])


@lru_cache(maxsize=32)
def form(shapes: Shapes, channels_last: bool, device: torch.device) -> Form:
    """Return the form of all blocks that hold tensors of these shapes."""
    return Form(shapes, channels_last, device)


class Block:
    """Tensors of one type in one piece of memory; they are moved into it.

    Args:
        tensors: What it holds, by name, in the order of messages.
        channels_last: Whether pictures' filters are turned.
        flat: Fill and copy it in one step, which a GPU wants; by default where it is on one.
    """

    def __init__(self, tensors: State, *, channels_last: bool, flat: bool | None = None) -> None:
        like = next(iter(tensors.values()))
        self.flat = wanted(like.device) if flat is None else flat
        self.names = tuple(tensors)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
        self.form = form(shapes, channels_last, like.device)
        self.memory = like.new_zeros(sum(self.form.rooms))
        self.views: State = dict(zip(tensors, self.form.views(self.memory), strict=True))
        for name, view in self.views.items():
            with torch.no_grad():
                view.copy_(tensors[name])
            tensors[name].data = view

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the tensors of a state in.

        Raises:
            RunError: One of them has another shape; a copy could spread it over more entries.
        """
        tensors = [state[name] for name in self.names]
        for name, tensor, shape in zip(self.names, tensors, self.form.shapes, strict=True):
            if tensor.shape != shape:
                raise RunError(f'"{name}" has shape {tuple(tensor.shape)}, expected {shape}')
        kinds = {(each.dtype, each.device) for each in tensors}
        if self.flat and kinds == {(self.memory.dtype, self.memory.device)}:
            with torch.no_grad():
                torch.index_select(end_to_end(tensors), 0, self.form.sources, out=self.memory)
        else:
            overwrite(self.views, state)

    def copy(self) -> State:
        """Return a copy of all tensors, contiguous, in a block of its own."""
        if self.flat:
            whole = self.memory.index_select(0, self.form.places)
        else:
            whole = torch.cat([view.reshape(-1) for view in self.views.values()])
        return dict(zip(self.names, cut_up(whole, self.form.shapes), strict=True))

    def cut_from(self, larger: "Block", submodel: Submodel) -> None:
        """Copy in what a submodel keeps of the same tensors of the full net."""
        plan = layout(submodel.graph, self.names, self.memory.device)
        kept, entries = kept_places(plan, submodel), self.form.sources
        if kept is not None:
            entries = kept.index_select(0, entries)
        places = larger.form.places.index_select(0, entries)
        torch.index_select(larger.memory, 0, places, out=self.memory)


class Packed:
    """Tensors that share one block of memory per type, so that copying all of them is cheap."""

    def __init__(
        self, tensors: Mapping[str, Tensor], *, channels_last: bool, flat: bool | None = None
    ) -> None:
        kinds: dict[torch.dtype, State] = {}
        for name, tensor in tensors.items():
            kinds.setdefault(tensor.dtype, {})[name] = tensor
        self.blocks = [
            Block(alike, channels_last=channels_last, flat=flat) for alike in kinds.values()
        ]
        self.views: State = {n: view for each in self.blocks for n, view in each.views.items()}

    @property
    def flat(self) -> bool:
        """Whether the blocks are filled and copied in one step each."""
        return all(block.flat for block in self.blocks)

    def load(self, state: State) -> None:
        """Copy the tensors of a state in."""
        for block in self.blocks:
            block.load(state)

    def copy(self) -> State:
        """Return a copy of all tensors, contiguous, in one vector for each type."""
        return {name: tensor for each in self.blocks for name, tensor in each.copy().items()}

    def cut_from(self, larger: "Packed", submodel: Submodel) -> None:
        """Copy in what a submodel keeps of the same tensors of the full net, each at once."""
        for block, other in zip(self.blocks, larger.blocks, strict=True):
            block.cut_from(other, submodel)

    def zero(self) -> None:
        """Set all entries to zero."""
        for block in self.blocks:
            block.memory.zero_()


def _shaped(part: Tensor, shape: tuple[int, ...], channels_last: bool) -> Tensor:
    if not channels_last or len(shape) != 4:
        return part.view(shape)
    rows, channels, height, width = shape
    return part.view(rows, height, width, channels).permute(0, 3, 1, 2)


def _settled(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy numbers to a device, for good: any stream may read them from now on."""
    there = numbers.to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return there
