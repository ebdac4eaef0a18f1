"""A run's state on disk: safetensors and JSON, never pickle, and never half of one.

`round-00007/` holds `tensors.safetensors` and `checkpoint.json` with its SHA-256. It is written
under another name and renamed when complete, so a kill at any moment leaves whole checkpoints
only. The last two are kept: a damaged one is named in a warning, and the one before is used.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dapperfl.core.messages import LocalModel, ServerState
from dapperfl.core.state import State
from dapperfl.errors import CheckpointError

SCHEMA = 1
KEEP = 2
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on."""

    server: ServerState
    memories: Mapping[int, State]  # by device id; on real devices they stay there
    empty_rounds: int = 0  # in a row, up to now


def save_checkpoint(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot so that it is there whole or not at all; older ones are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"round-{snapshot.server.round_num:05d}"
    work = folder / f".{name}.{os.getpid()}"
    for leftover in folder.glob(".round-*"):  # of a process that was killed while it wrote
        shutil.rmtree(leftover, ignore_errors=True)
    work.mkdir()
    tensors = work / "tensors.safetensors"
    save_file(_flatten(snapshot), tensors)
    facts = {
        "schema": SCHEMA,
        "round": snapshot.server.round_num,
        "empty_rounds": snapshot.empty_rounds,
        "clients": sorted(snapshot.memories),
        "sha256": _digest(tensors),
    }
    (work / "checkpoint.json").write_text(json.dumps(facts, indent=1))
    for path in (*work.iterdir(), work):
        _sync(path)
    target = folder / name
    if target.exists():  # a damaged one of the same round
        shutil.rmtree(target)
    work.rename(target)
    _sync(folder)
    for old in _rounds(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path, start: Snapshot) -> Snapshot | None:
    """Read the newest intact checkpoint; None if there is none at all.

    Args:
        folder: Where `save_checkpoint` wrote.
        start: The run before its first round; gives the graph and the fleet.

    Raises:
        CheckpointError: If there are checkpoints and all of them are damaged.
    """
    found = _rounds(folder)
    for path in found:
        try:
            return _load(path, start)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            logger.warning("checkpoint %s is damaged (%s); trying the one before", path, error)
    if found:
        raise CheckpointError(f"no intact checkpoint is left in {folder}; start the run anew")
    return None


def _rounds(folder: Path) -> list[Path]:
    """List complete checkpoints, newest first."""
    return sorted(folder.glob("round-*"), reverse=True)


def _flatten(snapshot: Snapshot) -> State:
    parts: dict[str, State] = {"weights": snapshot.server.weights, "extra": snapshot.server.extra}
    parts |= {f"memory.{client}": memory for client, memory in snapshot.memories.items()}
    return {
        f"{part}/{name}": tensor.contiguous().clone()
        for part, state in parts.items()
        for name, tensor in state.items()
    }


def _load(path: Path, start: Snapshot) -> Snapshot:
    facts: dict[str, Any] = json.loads((path / "checkpoint.json").read_text())
    tensors = path / "tensors.safetensors"
    if facts["schema"] != SCHEMA:
        raise ValueError(f"schema {facts['schema']}, this version reads {SCHEMA}")
    if _digest(tensors) != facts["sha256"]:
        raise ValueError("tensors.safetensors does not match its SHA-256")
    parts: dict[str, State] = {f"memory.{client}": {} for client in facts["clients"]}
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
    )
    memories = {client: parts[f"memory.{client}"] for client in facts["clients"]}
    return Snapshot(server, memories, facts["empty_rounds"])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
