"""Messages between processes of one machine: objects by pickle, their tensors by shared memory.

The bytes of tensors lie in a nameless file, one for each direction, which vanishes with the two
processes whatever ends them. Both sides take turns: who sends again has had an answer, so the other
side has read what was there. Tensors that were in the message before are not sent again, so a
round's global weights travel once.

Only for processes that this package started itself: pickle trusts its sender.
"""

import io
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dapperfl.core.submodel import Submodel
from dapperfl.data.batches import Batches

_HEADER = struct.Struct("<Q")  # length of what follows
_ALIGNED = 64  # bytes, as torch aligns its own tensors


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in a block of bytes."""

    offset: int  # in entries
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


def _parts(block: Tensor, places: list[_Place]) -> list[Tensor]:
    """Return the tensors that lie in a block."""
    kinds = {place.dtype for place in places}
    seen_as = {kind: block.view(kind) for kind in kinds}
    return [seen_as[p.dtype].as_strided(p.shape, p.stride, p.offset) for p in places]


@dataclass(frozen=True)
class Raw:
    """A message as it arrived: its pickle, and a new file for tensors if the last was too small."""

    text: bytes
    file: int | None


class Channel:
    """One end of a conversation.

    Args:
        end: A connected stream socket of this machine.
        remember: Whether tensors of the last message are sent by reference; who sends them must
            not change them in place.
    """

    def __init__(self, end: socket.socket, *, remember: bool = False) -> None:
        self.end, self.remember = end, remember
        self._sent: dict[tuple[int, int], tuple[int, Tensor]] = {}  # place and tensor, by _key
        self._seen: list[Tensor] = []
        self._ours = self._theirs = torch.empty(0, dtype=torch.uint8)  # what each side writes to

    def send(self, message: object, names: Mapping[str, object]) -> None:
        """Send a message; objects that the other side knows by a name go by that name."""
        text = io.BytesIO()
        packer = _Packer(text, names)
        packer.dump(message)
        places: list[_Place | int] = []
        fresh: list[Tensor] = []
        size = 0
        for tensor in packer.tensors:
            if (earlier := self._sent.get(_key(tensor))) is not None:
                places.append(earlier[0])
                continue
            offset = size // tensor.element_size()
            places.append(_Place(offset, tensor.dtype, tensor.shape, _dense_stride(tensor)))
            fresh.append(tensor)
            size += -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
        self._post(pickle.dumps((places, size, text.getvalue()), protocol=5), size, places, fresh)
        if self.remember:
            self._sent = {_key(each): (index, each) for index, each in enumerate(packer.tensors)}

    def _post(
        self, body: bytes, size: int, places: list[_Place | int], fresh: list[Tensor]
    ) -> None:
        header = _HEADER.pack(len(body))
        file = _nameless_file(2 * size) if size > len(self._ours) else None  # takes what is written
        if file is not None:
            self._ours = _mapped(file)
        if fresh:
            new = [place for place in places if isinstance(place, _Place)]
            torch._foreach_copy_(_parts(self._ours, new), fresh)
        if file is None:
            self.end.sendall(header + body)
            return
        try:
            socket.send_fds(self.end, [header], [file])
        finally:
            os.close(file)
        self.end.sendall(body)

    def receive(self) -> Raw:
        """Wait for a message and take it, unopened.

        Raises:
            EOFError: If the other side is gone.
        """
        header, files, _, _ = socket.recv_fds(self.end, _HEADER.size, 1)
        file = files[0] if files else None
        if len(header) < _HEADER.size:
            header += self._exactly(_HEADER.size - len(header))
        (length,) = _HEADER.unpack(header)
        return Raw(self._exactly(length), file)

    def _exactly(self, length: int) -> bytes:
        found = bytearray(length)
        view = memoryview(found)
        while view:
            count = self.end.recv_into(view)
            if not count:
                raise EOFError("the other side is gone")
            view = view[count:]
        return bytes(found)

    def open(self, raw: Raw, names: Mapping[str, object]) -> Any:
        """Turn what arrived into objects again."""
        places, size, text = pickle.loads(raw.text)
        if raw.file is not None:
            self._theirs = _mapped(raw.file)
            os.close(raw.file)
        block = self._theirs[:size].clone()
        new = iter(_parts(block, [place for place in places if isinstance(place, _Place)]))
        seen = self._seen
        tensors = [next(new) if isinstance(place, _Place) else seen[place] for place in places]
        self._seen = tensors
        return _Unpacker(io.BytesIO(text), names, tensors).load()

    def close(self) -> None:
        """Hang up."""
        self.end.close()


class _Packer(pickle.Pickler):
    """Pickles all but tensors, which it collects, and objects that go by a name."""

    def __init__(self, file: io.BytesIO, names: Mapping[str, object]) -> None:
        super().__init__(file, protocol=5)
        self.names = {id(thing): name for name, thing in names.items()}
        self.tensors: list[Tensor] = []  # they must live until they are sent: ids are their keys
        self.index: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> str | int | None:
        """Return what stands for a tensor or a known object."""
        if type(thing) is Tensor and not thing.requires_grad:
            if id(thing) not in self.index:
                self.index[id(thing)] = len(self.tensors)
                self.tensors.append(thing)
            return self.index[id(thing)]
        return self.names.get(id(thing))

    def reducer_override(self, thing: Any) -> Any:
        """Leave behind what these objects have worked out for themselves."""
        if type(thing) in (Submodel, Batches):
            given = [each.name for each in fields(thing) if each.init]
            return type(thing), tuple(getattr(thing, name) for name in given)
        return NotImplemented


class _Unpacker(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, names: Mapping[str, object], tensors: list[Tensor]
    ) -> None:
        super().__init__(file)
        self.names, self.tensors = names, tensors

    def persistent_load(self, key: Any) -> object:
        return self.names[key] if isinstance(key, str) else self.tensors[key]


def _key(tensor: Tensor) -> tuple[int, int]:
    """Return what tells a tensor from all others that live, and from itself before a change."""
    return id(tensor), tensor._version


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """Return a tensor's strides if its numbers lie side by side, else those of a tidy copy."""
    tidy = tensor.is_contiguous()
    if not tidy and tensor.dim() == 4:
        tidy = tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.stride() if tidy else torch.empty(tensor.shape, device="meta").stride()


def _nameless_file(size: int) -> int:
    """Open a file in memory that no other program can see."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("dapperfl")
    else:
        with tempfile.TemporaryFile() as opened:
            file = os.dup(opened.fileno())
    os.ftruncate(file, size)
    return file


def _mapped(file: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, os.fstat(file).st_size), dtype=torch.uint8)
