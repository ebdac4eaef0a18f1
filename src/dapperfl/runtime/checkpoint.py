"""A run's state on disk: safetensors and JSON, never pickle, and never half of one.

`round-00007/` holds `tensors.safetensors` and `checkpoint.json` with its SHA-256. It is written
under another name and renamed when complete, so a kill at any moment leaves whole checkpoints
only. The last two are kept: a damaged one is named in a warning, and the one before is used.
What clients remember is in `memory/`, each in a file of its own that is written once.
"""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dapperfl.core.messages import LocalModel, ServerState
from dapperfl.core.state import State
from dapperfl.errors import CheckpointError
from dapperfl.runtime.memory import LIMIT, Memories
from dapperfl.runtime.memory_folder import Mark, MemoryFolder, digest, sync

SCHEMA = 2
KEEP = 2
_NAME = re.compile(r"round-\d{5,}")
MEMORY = "memory"  # the folder of client memories, beside the checkpoints
DAMAGE = (OSError, ValueError, KeyError, TypeError, SafetensorError)  # all that reading it may say
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on."""

    server: ServerState
    memories: Mapping[int, State]  # by device id; on real devices they stay there
    empty_rounds: int = 0  # in a row, up to now


def open_memory(folder: Path, *, limit: int = LIMIT, device: str = "cpu") -> MemoryFolder:
    """Return the store of client memories beside the checkpoints in a folder.

    Where a run's memories live there from its start, a checkpoint writes only those that changed.
    """
    return MemoryFolder(folder / MEMORY, limit, device)


def save_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot so that it is there whole or not at all; older ones are removed.

    Raises:
        OSError: The disk is full, or something else is in the way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    round_num = snapshot.server.round_num
    for leftover in folder.glob(".round-*"):  # of a process that was killed while it wrote
        shutil.rmtree(leftover, ignore_errors=True)
    store = _store(folder, snapshot) or _joined(folder, snapshot)
    work = folder / f".{_name(round_num)}.{os.getpid()}"
    work.mkdir()
    tensors = work / "tensors.safetensors"
    try:
        save_file(_flatten(snapshot.server), tensors)
    except SafetensorError as error:  # what it makes of an OSError
        raise OSError(errno.EIO, str(error), str(tensors)) from error
    facts = {
        "schema": SCHEMA,
        "round": round_num,
        "empty_rounds": snapshot.empty_rounds,
        "memory": asdict(store.save(store.view(snapshot.memories))),
        "sha256": digest(tensors),
    }
    (work / "checkpoint.json").write_text(json.dumps(facts, indent=1))
    sync([*work.iterdir(), work])
    target = folder / _name(round_num)
    if target.exists():  # a damaged one of the same round
        shutil.rmtree(target)
    work.rename(target)
    sync([folder])
    store.settle(round_num, _thin_out(folder, round_num))


def load_checkpoint(folder: Path, start: Snapshot) -> Snapshot | None:
    """Read the newest intact checkpoint; None if there is none at all.

    Args:
        folder: Where `save_checkpoint` wrote.
        start: The run before its first round; gives the graph and the fleet, and the store of
            client memories if it was opened in this folder.

    Raises:
        CheckpointError: If there are checkpoints and all of them are damaged, or another version
            of this package wrote them.
    """
    found = _rounds(folder)
    for path in found:
        try:
            return _load(path, start)
        except DAMAGE as error:
            logger.warning("checkpoint %s is damaged (%s); trying the one before", path, error)
    if found:
        raise CheckpointError(f"no intact checkpoint is left in {folder}; start the run anew")
    return None


def _name(round_num: int) -> str:
    return f"round-{round_num:05d}"


def _rounds(folder: Path) -> list[Path]:
    """List complete checkpoints, newest first; a copy under another name is none."""
    ours = [path for path in folder.glob("round-*") if _NAME.fullmatch(path.name)]
    return sorted(ours, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("round-"))


def _thin_out(folder: Path, newest: int) -> list[int]:
    """Remove all but the last checkpoints up to this round; return the rounds of those kept."""
    rounds = [_number(path) for path in _rounds(folder)]
    kept = [each for each in rounds if each <= newest][:KEEP]
    for each in set(rounds) - set(kept):  # a later round is one that could not be continued
        shutil.rmtree(folder / _name(each), ignore_errors=True)
    return kept


def _flatten(server: ServerState) -> State:
    parts = {
        "weights": server.weights,
        "extra": server.extra,
        "mean": server.mean,
        "styles": server.styles,
    }
    return {
        f"{part}/{name}": tensor.contiguous().clone()
        for part, state in parts.items()
        for name, tensor in state.items()
    }


def _store(folder: Path, snapshot: Snapshot) -> MemoryFolder | None:
    """Return the store that a snapshot's memories are in, if it is this folder's own."""
    if isinstance(snapshot.memories, Memories):
        store = snapshot.memories.store
        if isinstance(store, MemoryFolder) and store.folder == folder / MEMORY:
            return store
    return None


def _new_store(folder: Path, snapshot: Snapshot) -> MemoryFolder:
    device = next(iter(snapshot.server.weights.values())).device
    return open_memory(folder, device=str(device))


def _joined(folder: Path, snapshot: Snapshot) -> MemoryFolder:
    """Return a store to which memories from elsewhere can be added, beside those there are."""
    store = _new_store(folder, snapshot)
    for path in _rounds(folder):
        with suppress(*DAMAGE):
            _restore(store, path)
            break
    return store


def _restore(store: MemoryFolder, path: Path) -> Memories:
    """Bring back the memories of one checkpoint, such that those of the one before stay too."""
    round_num = _number(path)
    marks = {round_num: Mark(**_read_facts(path)["memory"])}
    older = [each for each in _rounds(path.parent) if _number(each) < round_num]
    for each in older[: KEEP - 1]:
        with suppress(*DAMAGE):  # it cannot be used anyway
            marks[_number(each)] = Mark(**_read_facts(each)["memory"])
    return store.restore(round_num, marks)


def _read_facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((path / "checkpoint.json").read_text())
    if facts["schema"] != SCHEMA:
        raise CheckpointError(
            f"checkpoint {path} was written by another version of dapperfl (schema "
            f"{facts['schema']}, this one reads {SCHEMA}); finish the run with that version, or "
            "start it anew with another --out"
        )
    return facts


def _load(path: Path, start: Snapshot) -> Snapshot:
    facts = _read_facts(path)
    tensors = path / "tensors.safetensors"
    if digest(tensors) != facts["sha256"]:
        raise ValueError("tensors.safetensors does not match its SHA-256")
    parts: dict[str, State] = {}
    for key, tensor in load_file(tensors).items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    weights, expected = parts.get("weights", {}), start.server.weights
    if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in expected.items()}:
        raise ValueError("it belongs to another net")
    device = next(iter(expected.values())).device
    parts = {part: {n: t.to(device) for n, t in state.items()} for part, state in parts.items()}
    server = replace(
        start.server,
        round_num=facts["round"],
        model=LocalModel({n: parts["weights"][n] for n in expected}, start.server.model.submodel),
        extra=parts.get("extra", {}),
        mean=parts.get("mean", {}),
        styles=parts.get("styles", {}),
    )
    store = _store(path.parent, start) or _new_store(path.parent, start)
    return Snapshot(server, _restore(store, path), facts["empty_rounds"])
