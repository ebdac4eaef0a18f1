"""Facts and tensors as one blob of bytes, and back without trust.

A blob is a safetensors file: the entry "facts" is JSON, the others are tensors. Both sides know a
net's tensors by name, so these lie end to end in one entry for each number format: a hundred names
would cost more than some submodels. Sizes are compared with what is expected before a tensor is
made, and nothing is unpickled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import save
from torch import Tensor

from dapperfl.core.state import State
from dapperfl.errors import MessageError
from dapperfl.runtime.facts import TEXT_LIMIT, Facts, read_facts, write_facts

FACTS = "facts"
HEADER_LIMIT = 2**16  # bytes of names and shapes, and again of facts
MOST_AXES, MOST_ENTRIES = 8, 2**40  # even of an empty tensor, whose shape costs nothing
DTYPES: Mapping[str, torch.dtype] = {  # by their names in the format
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
Shapes = Mapping[str, Sequence[int]]
Dtypes = Mapping[str, torch.dtype]


@dataclass(frozen=True)
class Entry:
    """A tensor that has arrived and is not believed yet."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytearray

    def tensor(self) -> Tensor:
        """Return it as a tensor that owns its memory.

        Raises:
            MessageError: If it says true or false by anything but 1 or 0.
        """
        if not self.data:
            return torch.empty(self.shape, dtype=self.dtype)
        if self.dtype != torch.bool:
            return torch.frombuffer(self.data, dtype=self.dtype).reshape(self.shape).clone()
        flags = torch.frombuffer(self.data, dtype=torch.uint8).reshape(self.shape)
        if bool((flags > 1).any()):
            raise MessageError("a truth value is neither 0 nor 1")
        return flags.bool()


def pack(facts: Mapping[str, object], tensors: State) -> bytes:
    """Return facts and tensors as one blob."""
    text = torch.frombuffer(bytearray(write_facts(facts)), dtype=torch.uint8)
    tidy = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save({FACTS: text, **tidy})


def unpack(data: bytes, limit: int) -> tuple[Facts, dict[str, Entry]]:
    """Open a blob; no more memory is taken than the blob's own size.

    Args:
        data: What arrived.
        limit: The most bytes that an honest message could have, facts and names aside.

    Raises:
        MessageError: If it is too large or no such blob.
    """
    if len(data) > limit + 2 * HEADER_LIMIT:
        raise MessageError(f"the message has {len(data)} bytes, expected at most {limit}")
    if int.from_bytes(data[:8], "little") > HEADER_LIMIT:
        raise MessageError("the message begins with a header that is too large")
    try:
        found = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise MessageError("the message is damaged: it is no safetensors file") from error
    entries = {name: _entry(raw["dtype"], raw["shape"], raw["data"]) for name, raw in found.items()}
    text = entries.pop(FACTS, None)
    if text is None or text.dtype != torch.uint8 or len(text.data) > HEADER_LIMIT:
        raise MessageError("the message has no facts, or too many")
    return read_facts(text.data), entries


def _entry(dtype: str, shape: Sequence[int], data: bytearray) -> Entry:
    if dtype not in DTYPES:
        raise MessageError("a tensor of the message has a number format that no net has")
    if len(shape) > MOST_AXES or prod(size for size in shape if size) > MOST_ENTRIES:
        raise MessageError("a tensor of the message has a shape that nothing has")
    return Entry(DTYPES[dtype], tuple(shape), data)


def take(entries: dict[str, Entry], name: str) -> Entry:
    """Take one entry out."""
    if name not in entries:
        raise MessageError(f'the message has no tensor "{name}"')
    return entries.pop(name)


def none_left(entries: Mapping[str, Entry]) -> None:
    """Refuse tensors that nobody asked for."""
    if entries:
        raise MessageError(f"the message has {len(entries)} tensors too many")


def pack_bits(flags: Tensor) -> Tensor:
    """Return truth values as bits, eight to a byte, the first one lowest."""
    rows = torch.zeros((len(flags) + 7) // 8 * 8, dtype=torch.uint8)
    rows[: len(flags)] = flags
    return (rows.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def unpack_bits(entry: Entry, count: int) -> Tensor:
    """Return so many truth values.

    Raises:
        MessageError: If there are more or fewer.
    """
    if entry.dtype != torch.uint8 or entry.shape != ((count + 7) // 8,):
        raise MessageError(f"the kept channels must be {count} bits")
    bits = entry.tensor().view(-1, 1) >> torch.arange(8, dtype=torch.uint8) & 1
    flags = bits.flatten().bool()
    if bool(flags[count:].any()):
        raise MessageError(f"a channel beyond the last, {count - 1}, is kept")
    return flags[:count]


def join(state: Mapping[str, Tensor], shapes: Shapes, dtypes: Dtypes) -> State:
    """Lay tensors end to end, those of each number format in one.

    Raises:
        MessageError: If a tensor is missing, or has another shape or number format.
    """
    parts: dict[torch.dtype, list[Tensor]] = {}
    for name, shape in shapes.items():
        if name not in state:
            raise MessageError(f'"{name}" is missing from the state')
        tensor = state[name]
        if (tuple(tensor.shape), tensor.dtype) != (tuple(shape), dtypes[name]):
            raise MessageError(
                f'"{name}" is {_shown(tensor.dtype)} of shape {tuple(tensor.shape)}, '
                f"expected {_shown(dtypes[name])} of shape {tuple(shape)}"
            )
        parts.setdefault(tensor.dtype, []).append(tensor.detach().flatten())
    return {_shown(dtype): torch.cat(tensors) for dtype, tensors in parts.items()}


def split(
    entries: dict[str, Entry], shapes: Shapes, dtypes: Dtypes, *, halved: bool = False
) -> State:
    """Take out and cut apart what `join` made.

    Args:
        entries: What arrived; the entries of these tensors are taken out.
        shapes: The tensors' names and shapes, in the order of both sides.
        dtypes: Their number formats.
        halved: Whether floats of 32 and 64 bits have travelled as 16.

    Raises:
        MessageError: If an entry is missing, or has another length or number format.
    """
    groups: dict[torch.dtype, list[str]] = {}
    for name in shapes:
        groups.setdefault(dtypes[name], []).append(name)
    state: State = {}
    for dtype, names in groups.items():
        sizes = [prod(shapes[name]) for name in names]
        entry = take(entries, _shown(dtype))
        sent = torch.float16 if halved and is_wide(dtype) else dtype
        if entry.dtype != sent or entry.shape != (sum(sizes),):
            raise MessageError(
                f"the {_shown(dtype)} part is {_shown(entry.dtype)} of shape {entry.shape}, "
                f"expected {_shown(sent)} of shape {(sum(sizes),)}"
            )
        for name, part in zip(names, torch.split(entry.tensor(), sizes), strict=True):
            # Memory of its own, aligned as that of a tensor that never travelled.
            state[name] = part.to(dtype, copy=True).reshape(tuple(shapes[name]))
    return {name: state[name] for name in shapes}


def is_wide(dtype: torch.dtype) -> bool:
    """Tell whether 16 bits would halve these numbers."""
    return dtype in (torch.float32, torch.float64)


def pick(entries: dict[str, Entry], prefix: str, limit: int) -> State:
    """Take out all tensors whose name begins with a prefix: any small state.

    Raises:
        MessageError: If they have more bytes than the limit, or a name that cannot be shown.
    """
    names = sorted(name for name in entries if name.startswith(prefix))
    found = {name.removeprefix(prefix): entries.pop(name) for name in names}
    if sum(len(entry.data) for entry in found.values()) > limit:
        raise MessageError(f"what the method sends beside the weights exceeds {limit} bytes")
    if any(not name.isprintable() or len(name) > TEXT_LIMIT for name in found):
        raise MessageError("a tensor of the message has a name that cannot be shown")
    return {name: entry.tensor() for name, entry in found.items()}


def _shown(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
