"""Batch norms count their batches, each with a kernel of its own; here one count does for all.

With a fixed momentum nothing reads these counters while a net trains, so they are taken away from
the layers in steps that are recorded and brought up to date at the end of an epoch. What a layer
counts in one step is seen in a first step, for a layer may be used twice, or not at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NAME = "num_batches_tracked"


class Counters:
    """The batch counters of a net whose steps all count alike."""

    def __init__(self, module: nn.Module) -> None:
        layers = [
            part
            for part in module.modules()
            if type(part) in _PLAIN and part.momentum is not None and _NAME in part._buffers
        ]
        self.layers = [layer for layer in layers if layer._buffers[_NAME] is not None]
        self.counts = [layer.get_buffer(_NAME) for layer in self.layers]
        self.idle = [torch.zeros((), dtype=torch.int64) for _ in self.layers]
        self.each: list[int] | None = None  # what one step adds to each
        self.disagree = False  # whether the last step that was watched counted otherwise
        self.steps = 0  # taken since the counters were last up to date

    def _values(self) -> list[int]:
        return [int(value) for value in torch.stack(self.counts).tolist()] if self.counts else []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let the layers count for themselves in a first step, and remember how much."""
        self.settle()
        before = self._values()
        yield
        added = [new - old for new, old in zip(self._values(), before, strict=True)]
        self.disagree = self.each is not None and self.each != added
        if self.disagree:  # from now on they count for themselves
            self.layers, self.counts, self.idle, added = [], [], [], []
        self.each = added

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Let the layers count on the CPU, where it costs no kernel and is forgotten."""
        for layer, idle in zip(self.layers, self.idle, strict=True):
            layer._buffers[_NAME] = idle
        try:
            yield
        finally:
            for layer, count in zip(self.layers, self.counts, strict=True):
                layer._buffers[_NAME] = count

    def settle(self) -> None:
        """Count the steps that have not been counted yet."""
        if self.steps and self.counts and self.each:
            groups: dict[int, list[torch.Tensor]] = {}
            for count, added in zip(self.counts, self.each, strict=True):
                groups.setdefault(added, []).append(count)
            for added, counts in groups.items():
                torch._foreach_add_(counts, added * self.steps)
        self.steps = 0
