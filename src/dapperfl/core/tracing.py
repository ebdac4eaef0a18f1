"""Watching a net run once: which operations it calls, on what, and from which layer.

Calls are seen at the level of torch functions, below modules and above kernels, so `nn.Conv2d` and
`F.conv2d` are one thing, and Python control flow needs no support. Which axes are the same
channels is worked out on *shadows* (see `shadows`): the rules of `layers` say what a call does to
them, and `Trace` keeps what was learnt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from dapperfl.core.calls import Call, canonical_name, tensors_in
from dapperfl.core.shadows import NO_CHANNEL, Ties, blank, distinct, distinct_pairs, varies
from dapperfl.core.unwrapped import unwrapped


class Rules(dict[str, Callable[["Trace", Call], Any]]):
    """Channel rules by the name of the operation; a rule returns its results' shadows."""

    def on(self, *names: str) -> Callable[..., Any]:
        """Register a rule for operations of these names; one string may hold several."""

        def register(rule: Callable[["Trace", Call], Any]) -> Callable[["Trace", Call], Any]:
            self.update(dict.fromkeys(" ".join(names).split(), rule))
            return rule

        return register


@dataclass(frozen=True)
class Producer:
    """A weight that creates channels: numbers start … start + count - 1."""

    name: str  # of its layer, or its own if it is not called "weight"
    start: int
    count: int
    where: str
    module: nn.Module

    def channels(self) -> range:
        """Return its channels' numbers."""
        return range(self.start, self.start + self.count)


@dataclass(frozen=True)
class Arithmetic:
    """Multiplications of one layer, as a product of a weight's size and positions."""

    weight: str | None  # in the state; None for a filter outside it, which `positions` includes
    positions: int  # per sample, while all of `along` stay
    first: bool  # fed by the image itself, so no gradient flows further down
    norm: bool = False
    learnt: bool = True  # a fixed filter wants no gradient
    along: tuple[Tensor, ...] = field(default=(), compare=False)  # axes of channels in `positions`


@dataclass(frozen=True)
class Product:
    """Multiplications of one call per sample, the same in every submodel: its channels all stay."""

    macs: int  # forward
    flops: int  # forward and backward, 2 per MAC


@dataclass(frozen=True)
class Resize:
    """A layer attribute that follows the number of kept channels: attribute = kept / divisor."""

    where: str
    attribute: str
    channels: Tensor
    divisor: int = 1
    place: int | None = None  # in an attribute that is a list or tuple


@dataclass(frozen=True)
class Vector:
    """A tensor made entry by entry from learnt vectors, such as `gamma.view(1, -1, 1, 1)`."""

    tensor: Tensor
    positions: Tensor  # of each entry in the vectors
    sources: tuple[Tensor, ...]


@dataclass(frozen=True)
class Derived:
    """A tensor made of state entry by entry, such as `weight * scale`, a transpose or a cast."""

    tensor: Tensor
    sources: tuple[tuple[Tensor, tuple[int | None, ...]], ...]  # and which axis each axis is there


@dataclass
class Trace:
    """What is known about a net while it is being watched."""

    names: Mapping[int, list[str]]  # id of a parameter or buffer -> its names in the state
    batch: int  # samples in the example
    shadows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    vectors: dict[int, Vector] = field(default_factory=dict)
    derived: dict[int, Derived] = field(default_factory=dict)
    ties: Ties = field(default_factory=Ties)  # the same channel
    bundles: Ties = field(default_factory=Ties)  # channels that stay or go together
    axes: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    producers: list[Producer] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)  # channel -> why it always stays
    streams: set[int] = field(default_factory=set)  # channels met by an elementwise add
    writers: dict[tuple[str, int], None] = field(default_factory=dict)
    norms: set[str] = field(default_factory=set)  # weights and biases of batch and group norms
    arithmetic: list[Arithmetic] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    made: dict[int, list[Any]] = field(default_factory=dict)  # id of work -> what a loss goes by
    resizes: dict[tuple[str, str], Resize] = field(default_factory=dict)  # of a layer, once
    guesses: dict[tuple[str, str, int | None], Resize] = field(default_factory=dict)
    origins: dict[int, tuple[Tensor, frozenset[str]]] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)  # state tensor -> why no axis is cut
    unruled: dict[str, str] = field(default_factory=dict)  # call -> why all it reads stays
    strangers: list[str] = field(default_factory=list)  # learnt parameters that are not the net's
    calls: int = 0  # so far
    apart: dict[int, Call] = field(default_factory=dict)  # those without activations, by number
    last_linear: tuple[Any, str] = (None, "")  # its output and its name

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

    def is_known(self, tensor: Any) -> bool:
        """Tell whether this is state, or derived from some, so that its axes can be cut."""
        return self.is_state(tensor) or id(tensor) in self.derived

    def sources(self, tensor: Tensor) -> tuple[tuple[Tensor, tuple[int | None, ...]], ...]:
        """Return the state that a tensor is or comes from, and which axis each axis is there."""
        if self.is_state(tensor):
            return ((tensor, tuple(range(tensor.dim()))),)
        known = self.derived.get(id(tensor))
        return known.sources if known else ()

    def axis_names(self, tensor: Tensor, axis: int) -> list[tuple[str, int]]:
        """Return the names of the state behind a tensor's axis, and the axis there."""
        found = [(source, axes[axis]) for source, axes in self.sources(tensor)]
        return [(name, at) for s, at in found if at is not None for name in self.state_names(s)]

    def origin(self, tensor: Tensor) -> frozenset[str]:
        """Return the names of the state that a tensor is, or was computed from."""
        known = self.origins.get(id(tensor))
        return frozenset(self.state_names(tensor)) | (known[1] if known else frozenset())

    def set_origin(self, tensor: Tensor, names: frozenset[str]) -> None:
        """Remember what a tensor was computed from (and the tensor, as with shadows)."""
        if names:
            self.origins[id(tensor)] = (tensor, names)

    def keep_whole(self, tensor: Tensor, reason: str) -> None:
        """Say that the state behind a tensor is cut on no axis, whoever else uses it."""
        for name in self.origin(tensor):
            self.whole.setdefault(name, reason)

    def remember_way(self, work: Arithmetic | Product, results: list[Tensor]) -> None:
        """Remember by which steps a gradient would have to come to work."""
        self.made[id(work)] = [result.grad_fn for result in results]

    def pin_whole(self) -> None:
        """Pin the channels of all state that stays whole; its uses may have come in any order."""
        for (name, _), channels in self.axes.items():
            if name in self.whole:
                self.pin(channels, self.whole[name])

    def create(self, tensor: Tensor, axis: int, call: Call) -> Tensor:
        """Return the channels that a weight's axis creates; new ones on its first use."""
        first, at = self.axis_names(tensor, axis)[0]
        channels = self.axes.get((first, at))
        if channels is None:
            start, count = len(self.ties), tensor.shape[axis]
            self.ties.grow(count)
            self.bundles.grow(count)
            name = first.removesuffix(".weight")
            if any(name == producer.name for producer in self.producers):
                name = (
                    f"{name}[{at}]"  # an embedding whose table is the last layer's weight as well
                )
            self.producers.append(Producer(name, start, count, call.where, call.module))
            channels = torch.arange(start, start + count)
        self.bind(tensor, axis, channels, call)
        return channels

    def bind(self, tensor: Any, axis: int, channels: Tensor, call: Call) -> None:
        """Say that a state tensor's axis runs over these channels."""
        if tensor is None:
            return
        if not self.is_known(tensor):
            self.pin(channels, f"meets a computed tensor in {call}")
        for place in self.axis_names(tensor, axis):
            known = self.axes.setdefault(place, channels)
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

    def bundle_blocks(self, channels: Tensor, blocks: int, call: Call) -> None:
        """Make every block lose the same positions, and so equally many channels."""
        self.bundle(channels.reshape(blocks, -1).T, f"block of {call} with uncut channels")

    def guess(self, call: Call, number: int, channels: Tensor, divisor: int = 1) -> None:
        """Remember attributes of a layer that hold a number of a call: it may count channels.

        They follow a cut if the net cannot be cut otherwise, and only if a trial says so.
        """
        for name, value in vars(call.module).items():
            places: list[tuple[int | None, Any]] = [(None, value)]
            if type(value) in (list, tuple):
                places = list(enumerate(value))
            for place, each in places:
                if type(each) is int and each == number > 1:
                    follows = Resize(call.where, name, channels, divisor, place)
                    self.guesses.setdefault((call.where, name, place), follows)

    def pin(self, channels: Tensor, reason: str) -> None:
        """Say that these channels always stay."""
        for channel in distinct(channels):
            if channel >= 0:
                self.pinned.setdefault(channel, reason)

    def pin_all(self, value: Any, reason: str) -> None:
        """Say that the channels of all activations in a nested value always stay."""
        for tensor in tensors_in(value):
            shadow = self.shadow(tensor)
            if shadow is not None:
                self.pin(shadow, reason)

    def is_bundled(self, shadow: Tensor, axis: int) -> bool:
        """Tell whether channels that differ only in their place on an axis stay or go together."""
        first = shadow.narrow(axis, 0, 1).expand(shadow.shape)
        pairs = distinct_pairs(first, shadow)
        return all(min(p) >= 0 and len(set(map(self.bundles.root, p))) == 1 for p in pairs)

    def along(self, shadow: Tensor, axis: int, call: Call) -> Tensor:
        """Return the channels along one axis; they are pinned if other axes decide as well.

        Those that stay or go together anyway, as the entries of a picture that a linear layer
        writes, count as one channel from here on.
        """
        axis %= shadow.dim()
        line = shadow
        for other in range(shadow.dim()):
            if other != axis:
                first = line.narrow(other, 0, 1)
                if varies(line, other):
                    if not self.is_bundled(line, other):
                        self.pin(shadow, f"mixed with another axis at {call}")
                        return torch.full((shadow.shape[axis],), NO_CHANNEL)
                    self.tie(line, first.expand(line.shape), f"one channel at {call}")
                line = first
        return line.flatten()


Handler = Callable[[Trace, Call], None]


class Watcher(TorchFunctionMode):
    """Hands every torch call to `handle`, with the layer it came from."""

    def __init__(self, net: nn.Module, trace: Trace, handle: Handler) -> None:
        super().__init__()
        self.trace, self.handle = trace, handle
        self.stack: list[tuple[str, nn.Module]] = [("", net)]
        self.hooks: list[RemovableHandle] = []
        for name, module in net.named_modules():
            self.hooks.append(module.register_forward_pre_hook(self._enter(name)))
            self.hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, _: Any) -> None:
            self.stack.append((name, module))

        return enter

    def _leave(self, module: nn.Module, _: Any, out: Any) -> None:
        name, _ = self.stack.pop()
        if isinstance(module, nn.Linear):
            self.trace.last_linear = (out, name)

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
        self.handle(self.trace, Call(canonical_name(func), where, module, func, args, kwargs, out))
        return out


def watch(net: nn.Module, trace: Trace, example: Tensor, handle: Handler) -> Any:
    """Run a net once, hand every call to `handle` and return the net's output.

    Gradients are on: they tell which layers would have to pass one further down.
    """
    example = example.clone()
    trace.set_shadow(example, blank(example.shape))
    watcher = Watcher(net, trace, handle)
    try:
        with torch.enable_grad(), unwrapped(), watcher:
            return net(example)
    finally:
        for hook in watcher.hooks:
            hook.remove()


def new_trace(net: nn.Module, batch: int) -> Trace:
    """Return a trace that knows the net's tensors by name, and nothing else yet."""
    names: dict[int, list[str]] = {}
    for name, tensor in named_tensors(net):
        names.setdefault(id(tensor), []).append(name)
    return Trace(names, batch)


def named_tensors(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Return all parameters and buffers, shared ones under each of their names."""
    parameters = net.named_parameters(remove_duplicate=False)
    return [*parameters, *net.named_buffers(remove_duplicate=False)]
