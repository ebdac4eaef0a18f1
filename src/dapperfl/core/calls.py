"""Calls of torch functions: one name for each operation, however it was written."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


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

    def operands(self) -> list[Tensor]:
        """Return all tensors among the arguments."""
        return list(tensors_in((self.args, self.kwargs)))

    def results(self) -> list[Tensor]:
        """Return all tensors the call made or wrote into: `x[0] = y` returns none, and writes x."""
        found = list(tensors_in(self.out if self.out is not None else self.args[:1]))
        return found + [t._base for t in found if t._base is not None and self.writes]

    @property
    def writes(self) -> bool:
        """Tell whether the call changed one of its operands in place."""
        outs = {id(tensor) for tensor in tensors_in(self.out)}
        return self.out is None or any(id(operand) in outs for operand in self.operands())

    def again(self, swap: Callable[[Tensor], Tensor]) -> Any:
        """Run the call once more with other tensors in the places of its own."""

        def swapped(value: Any) -> Any:
            if isinstance(value, Tensor):
                return swap(value)
            if isinstance(value, tuple | list):
                return type(value)([swapped(item) for item in value])
            return value

        kwargs = {name: swapped(value) for name, value in self.kwargs.items()}
        return self.func(*swapped(self.args), **kwargs)

    def __str__(self) -> str:
        return f'"{self.name}" in {self.where or "the top module"} ({type(self.module).__name__})'


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
    if name in ("__get__", "__set__", "__delete__"):  # a property such as x.T
        owner = str(getattr(getattr(func, "__self__", func), "__name__", "property"))
        return owner if name == "__get__" else f"set {owner}"
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        name = name[1:] if name[0] in "ir" and name[1:] in _OPERATORS else name
        if name not in _OPERATORS and name not in _METHODS:
            return f"__{name}__"
    name = name.strip("_")
    return _ALIASES.get(name, name)


# fmt: off
_OPERATORS = {
    "add", "sub", "mul", "div", "truediv", "floordiv", "pow", "mod", "matmul", "and", "or", "xor",
}
_METHODS = {"getitem", "neg", "abs", "gt", "lt", "ge", "le", "eq", "ne", "pos", "len", "invert"}
_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "rsub": "sub",
    "subtract": "sub", "mod": "remainder", "concat": "cat", "concatenate": "cat",
    "absolute": "abs", "negative": "neg", "positive": "pos", "clip": "clamp",
    "bitwise_not": "invert", "logical_not": "invert", "and": "logical_and", "or": "logical_or",
    "xor": "logical_xor", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor", "arctan2": "atan2",
    "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le",
}
# fmt: on
