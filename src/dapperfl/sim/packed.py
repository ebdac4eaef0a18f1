"""Many tensors in one block of memory: copied at once, and at addresses that never change."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dapperfl.core.state import State

ALIGNED = 64  # entries: kernels of a GPU want tensors to begin at round addresses


class Packed:
    """Tensors that share one block of memory per type, so that copying all of them is cheap."""

    def __init__(self, tensors: Mapping[str, Tensor], *, channels_last: bool) -> None:
        # What is turned comes last, so that all else is one piece.
        ordered = sorted(tensors, key=lambda name: channels_last and tensors[name].dim() == 4)
        kinds: dict[torch.dtype, list[str]] = {}
        for name in ordered:
            kinds.setdefault(tensors[name].dtype, []).append(name)
        self.blocks: dict[torch.dtype, Tensor] = {}
        self.views: State = {}
        self.turned: set[str] = set()
        for kind, names in kinds.items():
            sizes = [tensors[name].numel() for name in names]
            rooms = [-(-size // ALIGNED) * ALIGNED for size in sizes]
            like = tensors[names[0]]
            self.blocks[kind] = torch.zeros(sum(rooms), dtype=kind, device=like.device)
            parts = torch.split(self.blocks[kind], rooms)
            for name, size, part in zip(names, sizes, parts, strict=True):
                view = _shaped(part[:size], tensors[name].shape, channels_last)
                with torch.no_grad():
                    view.copy_(tensors[name])
                tensors[name].data = view
                self.views[name] = view
                if not view.is_contiguous():
                    self.turned.add(name)
        plain = {n: torch.empty(v.shape, device="meta").stride() for n, v in self.views.items()}
        self.places = [
            (name, view.dtype, view.shape, plain[name], view.storage_offset())
            for name, view in self.views.items()
        ]

    def copy(self) -> State:
        """Return a copy of all tensors, contiguous, in a block of its own."""
        blocks = {kind: block.clone() for kind, block in self.blocks.items()}
        state = {
            name: blocks[kind].as_strided(shape, stride, start)
            for name, kind, shape, stride, start in self.places
        }
        for name in self.turned:
            state[name].copy_(self.views[name])
        return state

    def zero(self) -> None:
        """Set all entries to zero."""
        for block in self.blocks.values():
            block.zero_()


def _shaped(part: Tensor, shape: torch.Size, channels_last: bool) -> Tensor:
    if not channels_last or len(shape) != 4:
        return part.view(shape)
    rows, channels, height, width = shape
    return part.view(rows, height, width, channels).permute(0, 3, 1, 2)
