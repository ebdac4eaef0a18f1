"""Watching a net run once: which operations it calls, on what, and from which layer.

Calls are seen at the level of torch functions, below modules and above kernels, so `nn.Conv2d` and
`F.conv2d` are one thing, and Python control flow needs no support. Which axes are the same
channels is worked out on *shadows*: a shadow has its tensor's shape and holds, for each entry, the
number of the channel it belongs to (or NO_CHANNEL). Reshapes and concatenations are then simply
applied to the shadows as well.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dapperfl.errors import TraceError

NO_CHANNEL = -1  # an entry that belongs to no channel: image input, positions, constants


class Ties:
    """Numbers that must share one fate: a union-find over channels."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def grow(self, count: int) -> None:
        """Add so many numbers, each on its own."""
        self.parent.extend(range(len(self.parent), len(self.parent) + count))

    def root(self, item: int) -> int:
        """Return the representative of a number."""
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def unite(self, first: int, second: int) -> None:
        """Tie two numbers; the smaller representative stays."""
        low, high = sorted((self.root(first), self.root(second)))
        self.parent[high] = low


@dataclass(frozen=True)
class Call:
    """One operation of the net: its canonical name, its layer, its arguments and its result."""

    name: str
    where: str  # dotted path of the innermost module
    module: nn.Module
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument, wherever it was given."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def __str__(self) -> str:
        return f'"{self.name}" in {self.where or "the top module"} ({type(self.module).__name__})'


@dataclass(frozen=True)
class Producer:
    """A layer that creates channels: numbers start … start + count - 1."""

    name: str
    start: int
    count: int
    module: nn.Module


@dataclass(frozen=True)
class Arithmetic:
    """Multiplications of one layer, as a product of a state tensor's size and positions."""

    weight: str
    positions: int  # per sample
    first: bool  # fed by the image itself, so no gradient flows further down
    norm: bool = False


@dataclass(frozen=True)
class Resize:
    """A layer attribute that follows the number of kept channels: attribute = kept / divisor."""

    where: str
    attribute: str
    channels: Tensor
    divisor: int


@dataclass
class Trace:
    """What is known about a net while it is being watched."""

    names: Mapping[int, list[str]]  # id of a parameter or buffer -> its names in the state
    shadows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    ties: Ties = field(default_factory=Ties)  # the same channel
    bundles: Ties = field(default_factory=Ties)  # channels that stay or go together
    axes: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    producers: list[Producer] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)  # channel -> why it always stays
    streams: set[int] = field(default_factory=set)  # channels met by an elementwise add
    writers: dict[tuple[str, int], None] = field(default_factory=dict)
    gates: set[str] = field(default_factory=set)
    arithmetic: list[Arithmetic] = field(default_factory=list)
    resizes: list[Resize] = field(default_factory=list)
    plain: set[int] = field(default_factory=set)  # tensors made from the image alone

    def shadow(self, tensor: Any) -> Tensor | None:
        """Return the shadow of an activation, or None for anything else."""
        known = self.shadows.get(id(tensor))
        return known[1] if known else None

    def set_shadow(self, tensor: Tensor, shadow: Tensor) -> None:
        """Remember the shadow of an activation (and the tensor, so that its id stays its own)."""
        self.shadows[id(tensor)] = (tensor, shadow)

    def state_names(self, tensor: Any) -> list[str]:
        """Return the names of a parameter or buffer; empty for anything else."""
        return self.names.get(id(tensor), [])

    def is_state(self, tensor: Any) -> bool:
        """Tell whether this is a parameter or buffer of the net."""
        return id(tensor) in self.names

    def create(self, tensor: Tensor, axis: int, call: Call) -> Tensor:
        """Return the channels that a weight's axis creates; new ones on its first use."""
        names = self.state_names(tensor)
        known = self.axes.get((names[0], axis))
        if known is not None:
            return known
        start, count = len(self.ties.parent), tensor.shape[axis]
        self.ties.grow(count)
        self.bundles.grow(count)
        self.producers.append(Producer(call.where, start, count, call.module))
        channels = torch.arange(start, start + count)
        self.bind(tensor, axis, channels, call)
        return channels

    def bind(self, tensor: Any, axis: int, channels: Tensor, call: Call) -> None:
        """Say that a state tensor's axis runs over these channels."""
        if tensor is not None and not self.is_state(tensor):
            self.pin(channels, f"meets a computed tensor in {call}")
        for name in self.state_names(tensor):
            known = self.axes.setdefault((name, axis), channels)
            if known is not channels:
                self.tie(known, channels, f"shared by {call}")

    def tie(self, first: Tensor, second: Tensor, reason: str) -> None:
        """Say that two shadows hold the same channels, entry by entry."""
        for a, b in distinct_pairs(first, second):
            if a >= 0 and b >= 0:
                self.ties.unite(a, b)
            elif max(a, b) >= 0:
                self.pinned.setdefault(max(a, b), reason)

    def bundle(self, rows: Tensor, reason: str) -> None:
        """Say that the channels of each row, (rows, channels), stay or go together."""
        for row in rows.tolist():
            real = [channel for channel in row if channel >= 0]
            for channel in real[1:]:
                self.bundles.unite(real[0], channel)
            if len(real) < len(row):
                self.pin(torch.tensor(real), reason)

    def pin(self, channels: Tensor, reason: str) -> None:
        """Say that these channels always stay."""
        for channel in torch.unique(channels).tolist():
            if channel >= 0:
                self.pinned.setdefault(channel, reason)

    def along(self, shadow: Tensor, axis: int, call: Call) -> Tensor:
        """Return the channels along one axis; they are pinned if other axes decide as well."""
        axis %= shadow.dim()
        line = shadow
        for other in range(shadow.dim()):
            if other != axis:
                if varies(line, other):
                    self.pin(shadow, f"mixed with another axis at {call}")
                    return torch.full((shadow.shape[axis],), NO_CHANNEL)
                line = line.narrow(other, 0, 1)
        return line.flatten()


def varies(shadow: Tensor, axis: int) -> bool:
    """Tell whether the channel depends on the position along this axis."""
    if shadow.shape[axis] <= 1 or shadow.stride(axis) == 0:
        return False
    return bool((shadow != shadow.narrow(axis, 0, 1)).any())


def distinct_pairs(first: Tensor, second: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the distinct pairs of entries of two shadows of one shape."""
    for axis in range(first.dim()):
        if first.stride(axis) == 0 and second.stride(axis) == 0:  # expanded: all entries equal
            first, second = first.narrow(axis, 0, 1), second.narrow(axis, 0, 1)
    span = int(torch.maximum(first.amax(), second.amax())) + 2 if first.numel() else 2
    for code in torch.unique((first + 1) * span + second + 1).tolist():
        yield code // span - 1, code % span - 1


class Watcher(TorchFunctionMode):
    """Hands every torch call on activations to `handle`, with the layer it came from."""

    def __init__(self, net: nn.Module, trace: Trace, handle: Callable[[Trace, Call], None]) -> None:
        super().__init__()
        self.trace, self.handle = trace, handle
        self.stack: list[tuple[str, nn.Module]] = [("", net)]
        self.hooks = [
            hook
            for name, module in net.named_modules()
            for hook in (
                module.register_forward_pre_hook(self._enter(name)),
                module.register_forward_hook(self._leave, always_call=True),
            )
        ]

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, _: Any) -> None:
            self.stack.append((name, module))

        return enter

    def _leave(self, *_: Any) -> None:
        self.stack.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the call, then hand it over."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        where, module = self.stack[-1]
        if any(self.trace.shadow(tensor) is not None for tensor in tensors_in((args, kwargs))):
            call = Call(canonical_name(func), where, module, func, args, kwargs, out)
            self.handle(self.trace, call)
        return out


def watch(
    net: nn.Module, example: Tensor, handle: Callable[[Trace, Call], None]
) -> tuple[Trace, Any]:
    """Run a net once and hand every call to `handle`; return what was learnt and the output."""
    names: dict[int, list[str]] = {}
    tensors = [*net.named_parameters(remove_duplicate=False)]
    for name, tensor in [*tensors, *net.named_buffers(remove_duplicate=False)]:
        names.setdefault(id(tensor), []).append(name)
    trace = Trace(names)
    trace.set_shadow(example, torch.full((1,), NO_CHANNEL).expand(example.shape))
    trace.plain.add(id(example))
    watcher = Watcher(net, trace, handle)
    try:
        with torch.no_grad(), watcher:
            return trace, net(example)
    finally:
        for hook in watcher.hooks:
            hook.remove()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors inside nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))


def canonical_name(func: Callable[..., Any]) -> str:
    """Give an operation one name, however it was written: `+`, `add_`, `torch.add` are "add"."""
    name = func.__name__
    if name == "__get__":  # a property such as x.T
        return str(getattr(func, "__self__", func).__name__)
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        name = name[1:] if name[0] in "ir" and name[1:] in _OPERATORS else name
    name = name.strip("_")
    return _ALIASES.get(name, name)


_OPERATORS = {"add", "sub", "mul", "div", "truediv", "floordiv", "pow", "mod", "matmul"}
_ALIASES = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "rsub": "sub",
    "concat": "cat",
    "concatenate": "cat",
    "absolute": "abs",
    "clip": "clamp",
}


def unknown(call: Call) -> TraceError:
    """Say that there is no rule for an operation."""
    return TraceError(
        f"no channel rule for {call}; add one to dapperfl/core/layers.py, "
        "or write the layer with operations listed there"
    )
