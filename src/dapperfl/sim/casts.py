"""All weights cast to bfloat16 at once, where autocast would cast each layer's with a kernel.

Autocast casts a weight whenever a layer uses it, and its gradient back: two kernels a tensor, too
short to be worth their launch. Here all weights of a slot, which lie in one block, are cast in one
kernel at the beginning of a step, layers read the copies, and their gradients go back together.
The numbers are the same to the bit. Whatever cannot be followed stays as autocast has it: weights
that two layers share, a layer's second use in a step, other weights put in its place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dapperfl.sim.packed import Block, Packed

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass
class Cast:
    """A layer, its parameters, and their copies."""

    layer: nn.Module
    weights: tuple[nn.Parameter, ...]  # the weight, and the bias if there is one
    copies: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]  # where these go, in float32
    usual: Callable[..., Tensor] = field(init=False)  # the layer's own forward
    used: bool = False  # in this step

    def __post_init__(self) -> None:
        """Remember how the layer works by itself."""
        self.usual = self.layer.forward

    def begin(self) -> None:
        """Take the layer's place, whatever became of the step before."""
        self.used = False
        for copy in self.copies:
            copy.grad = None
        self.layer.forward = self.forward

    def forward(self, *args: Tensor, **named: Tensor) -> Tensor:
        """Do what the layer does, with copies cast before, if that is the same."""
        layer = self.layer
        (x,) = (*args, *named.values())
        same = list(map(id, _own(layer))) == list(map(id, self.weights))
        if self.used or not same or not _casts(x.device.type):
            return self.usual(x)
        self.used = True
        weight, bias = self.copies[0], self.copies[1] if len(self.copies) > 1 else None
        if isinstance(layer, nn.Linear):
            return nn.functional.linear(x, weight, bias)
        convolve: Callable[..., Tensor] = layer._conv_forward  # type: ignore[assignment]
        return convolve(x, weight, bias)


class Casts:
    """The weights of a net's plain layers, cast together.

    Args:
        module: The net.
        state: Its weights, in one block.
    """

    def __init__(self, module: nn.Module, state: Packed) -> None:
        self.casts: list[Cast] = []
        owners: dict[int, int] = {}  # how many modules have a parameter
        for part in module.modules():
            for parameter in part.parameters(recurse=False):
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        layers = [
            part
            for part in module.modules()
            if type(part) in (*_CONVOLUTIONS, nn.Linear)
            and "forward" not in vars(part)
            and _owns(part)
            and all(owners[id(each)] == 1 and _plain(each) for each in _own(part))
        ]
        found = [block for block in state.blocks if block.memory.dtype is torch.float32]
        if not layers or not found:
            return
        self.block: Block = found[0]
        self.memory = torch.empty_like(self.block.memory, dtype=torch.bfloat16)
        copies = dict(zip(self.block.names, self.block.form.views(self.memory), strict=True))
        space = torch.empty_like(self.block.memory)
        gradients = dict(zip(self.block.names, self.block.form.views(space), strict=True))
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for layer in layers:
            weights = _own(layer)
            mine = [names[id(each)] for each in weights]
            if not all(name in copies for name in mine):
                continue  # a layer in another precision
            leaves = tuple(
                copies[name].detach().requires_grad_(each.requires_grad)
                for name, each in zip(mine, weights, strict=True)
            )
            self.casts.append(Cast(layer, weights, leaves, tuple(gradients[n] for n in mine)))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let layers read copies of the weights as they are now; in the end, hand gradients back.

        Forward and backward belong inside, the optimiser's step does not.
        """
        if not self.casts:
            yield
            return
        self.memory.copy_(self.block.memory)
        for cast in self.casts:
            cast.begin()
        try:
            yield
        finally:
            for cast in self.casts:
                del cast.layer.forward
        self._hand_back()

    def _hand_back(self) -> None:
        alone: tuple[list[Tensor], list[Tensor]] = [], []
        for cast in self.casts:
            for parameter, copy, space in zip(
                cast.weights, cast.copies, cast.gradients, strict=True
            ):
                if copy.grad is None:
                    continue
                if parameter.grad is None:
                    alone[0].append(space)
                    alone[1].append(copy.grad)
                    parameter.grad = space
                else:  # the loss read the parameter itself, too
                    parameter.grad = parameter.grad + copy.grad
                copy.grad = None
        if alone[0]:
            torch._foreach_copy_(*alone)


def _own(layer: nn.Module) -> tuple[nn.Parameter, ...]:
    """Return a layer's weight, and its bias if it has one."""
    found = (layer._parameters.get(name) for name in ("weight", "bias"))
    return tuple(each for each in found if each is not None)


def _owns(layer: nn.Module) -> bool:
    """Tell whether nothing is computed: torch's older weight norm and pruning put tensors there."""
    own = layer._parameters
    return all(getattr(layer, name) is own.get(name) for name in ("weight", "bias"))


def _casts(device: str) -> bool:
    """Tell whether autocast would cast a weight as its copy is."""
    casts = torch.is_autocast_enabled(device)
    return casts and torch.get_autocast_dtype(device) is torch.bfloat16


def _plain(parameter: nn.Parameter) -> bool:
    """Tell whether nobody looks at a parameter's gradient while it is computed."""
    hooks = (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None))
    return parameter.dtype is torch.float32 and not any(hooks)
