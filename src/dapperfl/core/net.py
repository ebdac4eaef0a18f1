"""How the package sees a net: any module, its logits, and the representation before its head."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from dapperfl.errors import TraceError


class Batch(NamedTuple):
    """A batch of images and their labels."""

    x: Tensor  # (batch, channels, height, width), normalised
    y: Tensor  # (batch,), int64


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
        seen: list[Tensor] = []

        def keep_input(_: nn.Module, args: tuple[Any, ...]) -> None:
            seen.append(args[0])

        handle = self.module.get_submodule(self.head).register_forward_pre_hook(keep_input)
        try:
            logits = self(x)
        finally:
            handle.remove()
        return seen[-1].flatten(1), logits  # (batch, features), (batch, classes)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the trainable parameters by name."""
        return self.module.named_parameters()
