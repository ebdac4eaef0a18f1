"""Nets that are only looked through: built once a shape, filled with one model after another."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from dapperfl.core.messages import LocalModel
from dapperfl.core.state import State, overwrite
from dapperfl.runtime.precision import Precision
from dapperfl.runtime.turning import laid_out, turn

KEEP = 4  # shapes


def evaluating(net: nn.Module) -> None:
    """Put a net in evaluation mode, for good."""
    net.eval()


@dataclass
class FrozenNets:
    """Turns a model's weights into a net without building it anew each time.

    Args:
        template: The full net.
        precision: The number format it will run in.
        prepare: Puts a new net into the mode it will stay in.
        turns: Whether it can hold channels last, as CPUs and all precisions below fp32 want it.
    """

    template: nn.Module
    precision: Precision = "fp32"
    prepare: Callable[[nn.Module], None] = evaluating
    turns: bool = True
    nets: dict[tuple[tuple[int, ...], ...], tuple[nn.Module, State]] = field(default_factory=dict)
    inside: LocalModel | None = None  # what the net last asked for holds

    def holding(self, model: LocalModel) -> nn.Module:
        """Return a net with these weights; it is good until the next call."""
        key = model.submodel.signature
        net, tensors = self.nets.pop(key) if key in self.nets else self._built(model)
        if model is not self.inside:
            overwrite(tensors, model.weights)
            if len(tensors) > len(model.weights):
                overwrite(tensors, model.submodel.rest(self.template))
        self.nets[key], self.inside = (net, tensors), model
        while len(self.nets) > KEEP:
            del self.nets[next(iter(self.nets))]
        return net

    def _built(self, model: LocalModel) -> tuple[nn.Module, State]:
        net = laid_out(model.submodel.shrink(self.template).requires_grad_(False), self.turns)
        if self.turns and self.precision != "fp32":
            turn(net)
        self.prepare(net)
        self.inside = None
        return net, {**dict(net.named_buffers()), **net.state_dict()}
