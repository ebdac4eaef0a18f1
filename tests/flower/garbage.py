"""What dishonest devices send, one kind a round; see spoilt/sitecustomize.py."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.runtime.letters import closed
from tests.runtime.letters import opened as taken_apart

from dapperfl.core.state import State
from dapperfl.flower.letters import RECORD, letter, part
from dapperfl.flower.roster import DEVICE
from dapperfl.flower.runner import REPLY

NOISE = random.Random(0).randbytes(5000)
HELLO = 7  # the device that cannot even say who it is


def with_facts(**changes: Any) -> Callable[[bytes, Path], bytes]:
    def change(data: bytes, state: Path) -> bytes:
        facts, tensors = taken_apart(data)
        return closed(facts | changes, tensors)

    return change


def with_tensors(change: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Any:
    def changed(data: bytes, state: Path) -> bytes:
        facts, tensors = taken_apart(data)
        other: State = {
            name: change(tensor) if tensor.dtype == dtype else tensor
            for name, tensor in tensors.items()
        }
        return closed(facts, other)

    return changed


def _much(tensor: torch.Tensor) -> float:
    return 200.0 if tensor.numel() > 99 else 1.0  # styles must pass: weights are looked at later


def saved(data: bytes, state: Path) -> bytes:
    """Keep an honest reply for later, and send another device's."""
    (state / "saved").write_bytes(data)
    return with_facts(device=0)(data, state)


def replayed(data: bytes, state: Path) -> bytes:
    return (state / "saved").read_bytes()


KINDS: dict[tuple[int, int], tuple[Callable[[bytes, Path], bytes], str]] = {
    # device, round: how an honest reply is spoilt, what the server says of it
    (1, 1): (saved, "device 0 answers a task of device 1"),
    (1, 2): (replayed, "round 1"),
    (1, 3): (lambda data, state: NOISE, "header that is too large"),
    (2, 1): (lambda data, state: data[: len(data) // 2], "no safetensors file"),
    (2, 2): (with_facts(num_samples=10**9), "1000000000"),
    (2, 3): (with_facts(num_samples=0), "num_samples|samples"),
    (3, 1): (with_tensors(lambda each: each * torch.nan, torch.float32), "nan|finite"),
    (3, 2): (with_tensors(lambda each: each * _much(each), torch.float32), "norm"),
    (3, 3): (with_tensors(lambda each: each[:-1], torch.float32), "shape|entries|numbers"),
}


def spoil(module: Any) -> None:
    """Replace what the ClientApp does by something worse."""
    work, introduce = module._work, module._introduce

    def badly(content: Any, settings: Any, notes: dict[str, Any]) -> Any:
        honest = work(content, settings, notes)
        kind = KINDS.get((settings.id, notes["round"]))
        if kind is None or notes["phase"] != "train":
            return honest
        data = honest[RECORD][REPLY].data
        return letter({REPLY: part(kind[0](data, settings.state))})

    def rudely(content: Any, settings: Any, notes: dict[str, Any]) -> Any:
        if settings.id == HELLO:
            return letter({DEVICE: part(NOISE)})
        return introduce(content, settings, notes)

    module._work, module._introduce = badly, rudely
