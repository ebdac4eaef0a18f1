"""How the package sees a net: any module, its logits, and the representation before its head."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dapperfl.errors import TraceError


class Batch(NamedTuple):
    """A batch of images and their labels."""

    x: Tensor  # (batch, channels, height, width), normalised
    y: Tensor  # (batch,), int64


class Passage(NamedTuple):
    """What went in and out of a layer."""

    inputs: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class Net:
    """A module together with the name of its predictor, the linear layer that makes the logits.

    The encoder g_e is everything before that layer, so any module works as it is: there is no
    interface to implement.
    """

    module: nn.Module
    head: str | None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.module(x)  # type: ignore[no-any-return]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the representation z = g_e(x) and the logits g_p(z), in one forward pass."""
        if self.head is None:
            raise TraceError(
                "this net has no representation: its logits are not made by an nn.Linear layer; "
                "end the net with one, or choose a method that does not regularise z"
            )
        logits, seen = self.watch(x, self.head)
        return seen[self.head].inputs.flatten(1), logits  # (batch, features), (batch, classes)

    def watch(self, x: Tensor, *layers: str) -> tuple[Tensor, dict[str, Passage]]:
        """Return the logits, and what went in and out of some layers on the way."""
        seen: dict[str, Passage] = {}

        def keep(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
                seen[name] = Passage((*args, *named.values())[0], out)

            return hook

        handles = [
            self.module.get_submodule(name).register_forward_hook(keep(name), with_kwargs=True)
            for name in layers
        ]
        try:
            return self(x), seen
        finally:
            for handle in handles:
                handle.remove()

    def at(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the representations of other weights: frozen, in evaluation mode, no gradient."""
        modes = {module: module.training for module in self.module.modules()}
        self.module.eval()
        try:
            with torch.no_grad():
                bound = Net(_Bound(self.module, weights), f"module.{self.head}")
                return bound.split(x)[0]
        finally:
            for module, training in modes.items():
                module.training = training

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the trainable parameters by name."""
        return self.module.named_parameters()


class _Bound(nn.Module):
    """A module with other weights, for one call."""

    def __init__(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.module, self.weights = module, weights

    def forward(self, x: Tensor) -> Tensor:
        # A shared weight comes under each of its names, so nothing has to be tied.
        logits: Tensor = functional_call(self.module, dict(self.weights), (x,), tie_weights=False)
        return logits
