"""What clients keep for themselves: up to a limit of bytes in RAM, the rest in files.

A client's memory of one round never changes. So all memories are copied by copying references, a
snapshot of a run costs next to nothing, and a memory is written at most once. Its file goes when
nothing refers to it any more.
"""

import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from safetensors.torch import load, save

from dapperfl.core.state import State, num_bytes
from dapperfl.errors import CheckpointError

LIMIT = 2**30  # bytes in RAM, unless told otherwise


@dataclass(eq=False)
class Memory:
    """One client's memory as of one round: in RAM, on disk or both."""

    client: int
    number: int  # in the order in which the memories of a store were made
    state: State | None = None
    file: Path | None = None
    length: int = 0  # bytes of the file
    sha256: str = ""  # of the file
    checked: bool = True  # whether the file is known to be the one that was written


class MemoryStore:
    """Holds memories in RAM, those used last, and writes the others to a temporary folder.

    Args:
        limit: The bytes held in RAM at most (on a GPU: in its memory, where clients use them).
        device: Where memories go that come back from the disk.
    """

    def __init__(self, limit: int = LIMIT, device: str = "cpu") -> None:
        self.limit, self.device = limit, device
        self.bytes_held = 0
        self._held: OrderedDict[int, int] = OrderedDict()  # bytes by number, used longest ago first
        self._alive: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
        self._files: dict[int, Path] = {}  # by number
        self._last_number = 0
        self._process = os.getpid()

    @cached_property
    def folder(self) -> Path:
        """Where files are; this one is removed with the store."""
        path = Path(tempfile.mkdtemp(prefix="dapperfl-memory-"))
        weakref.finalize(self, _remove, path, self._process)
        return path

    def view(self, memories: Mapping[int, State]) -> "Memories":
        """Return a copy of these memories that lives in this store."""
        if isinstance(memories, Memories) and memories.store is self:
            return Memories(self, dict(memories.kept))
        kept = {client: self.add(client, state) for client, state in memories.items()}
        return Memories(self, kept)

    def add(self, client: int, state: State) -> Memory:
        """Take in what a client keeps from now on."""
        self._last_number += 1
        # As it would come back from the disk: strides may decide about the last bits of a result.
        tidy = {name: tensor.detach().contiguous() for name, tensor in state.items()}
        memory = Memory(client, self._last_number, tidy)
        self._watch(memory)
        self._hold(memory, tidy)
        return memory

    def read(self, memory: Memory) -> State:
        """Return the tensors of a memory, from the disk if need be."""
        if memory.state is not None:
            self._held.move_to_end(memory.number)
            return memory.state
        state = self._load(memory)
        self._hold(memory, state)
        return state

    def write(self, memory: Memory) -> Path:
        """Make sure that a memory has its file, though it may not have reached the disk yet."""
        if memory.file is not None:
            return memory.file
        assert memory.state is not None
        data = save({name: tensor.to("cpu", copy=True) for name, tensor in memory.state.items()})
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / file_name(memory.client, memory.number)
        path.write_bytes(data)
        memory.file, memory.length = path, len(data)
        memory.sha256 = hashlib.sha256(data).hexdigest()
        self._files[memory.number] = path
        return path

    def _load(self, memory: Memory) -> State:
        assert memory.file is not None
        remedy = "bring it back from a copy, or start the run anew with another --out"
        try:
            data = memory.file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{memory.file} cannot be read ({error}); {remedy}") from error
        if not memory.checked and hashlib.sha256(data).hexdigest() != memory.sha256:
            raise CheckpointError(f"{memory.file} does not match its SHA-256; {remedy}")
        memory.checked = True
        # Copied into memory of torch's own, whose alignment is that of a tensor never stored.
        return {name: tensor.to(self.device, copy=True) for name, tensor in load(data).items()}

    def _watch(self, memory: Memory) -> None:
        self._alive[memory.number] = memory
        if memory.file is not None:
            self._files[memory.number] = memory.file
        weakref.finalize(memory, self._forget, memory.number).atexit = False

    def _hold(self, memory: Memory, state: State) -> None:
        """Keep a memory in RAM; send those used longest ago to the disk until all is in bounds."""
        memory.state = state
        self._held[memory.number] = num_bytes(state)
        self.bytes_held += self._held[memory.number]
        while self.bytes_held > self.limit:
            number = next(iter(self._held))
            oldest = self._alive.get(number)
            if oldest is not None:
                self.write(oldest)
                oldest.state = None
            self._release(number)

    def _release(self, number: int) -> None:
        self.bytes_held -= self._held.pop(number, 0)

    def _forget(self, number: int) -> None:
        """Clean up after a memory that nothing refers to any more."""
        if os.getpid() != self._process:
            return  # a forked process must leave the files to its parent
        self._release(number)
        path = self._files.pop(number, None)
        if path is not None:
            self._discard(path)

    def _discard(self, path: Path) -> None:
        path.unlink(missing_ok=True)


class Memories(MutableMapping[int, State]):
    """What each client keeps, by device id; read from the disk only when it is asked for."""

    def __init__(self, store: MemoryStore, kept: dict[int, Memory]) -> None:
        self.store, self.kept = store, kept

    def __getitem__(self, client: int) -> State:
        return self.store.read(self.kept[client])

    def __setitem__(self, client: int, state: State) -> None:
        self.kept[client] = self.store.add(client, state)

    def __delitem__(self, client: int) -> None:
        del self.kept[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def __contains__(self, client: object) -> bool:
        return client in self.kept  # the inherited way would read the memory


def file_name(client: int, number: int) -> str:
    """Return the name of a memory's file; no two memories of a store share one."""
    return f"{client:05d}-{number:08d}.safetensors"


def is_file_name(text: str) -> bool:
    """Say whether a file may be a memory's; others are not ours to read or to remove."""
    return re.fullmatch(r"\d{5,}-\d{8,}\.safetensors", text) is not None


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
