"""How much memory a run takes, how much there is, and how many more runs fit."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

HOST = "host"
_SPARE = 10  # a tenth: later rounds may take more than those that were measured
# What CUDA itself takes for a process: code of kernels, stacks, queues. Torch does not count it.
_CUDA_CONTEXT = 1 << 30
_UNKNOWN = sys.maxsize  # where the system does not say how much is free, memory limits nothing


@dataclass(frozen=True)
class Memory:
    """Bytes of one kind of memory that a process has now and had at most, and that are free."""

    now: int
    peak: int
    free: int


def room(free: int, peak: int | None, held: Sequence[int]) -> int:
    """Return how many more runs fit beside those that run.

    The first run always may start; how much memory runs take is learned from it.

    Args:
        free: Bytes that nobody has taken.
        peak: The most that a run was seen to take; None before the first has been measured.
        held: What each running one has taken so far; it may still grow to the peak.
    """
    if peak is None:
        return 0 if held else 1
    need = max(1, peak + peak // _SPARE)
    promised = sum(max(0, need - each) for each in held)
    return max(0 if held else 1, (free - promised) // need)


def pools(device: str) -> tuple[str, ...]:
    """Name the memories that a run on this device takes its share of."""
    return (HOST,) if device == "cpu" else (HOST, device)


def measured(device: str) -> dict[str, Memory]:
    """Measure what this process takes of each memory."""
    found = {HOST: Memory(*_process(), free=host_free())}
    if device != "cpu":
        found[device] = Memory(
            now=torch.cuda.memory_reserved(device) + _CUDA_CONTEXT,
            peak=torch.cuda.max_memory_reserved(device) + _CUDA_CONTEXT,
            free=torch.cuda.mem_get_info(device)[0],
        )
    return found


def _process() -> tuple[int, int]:
    status = _text(Path("/proc/self/status"))
    now, peak = (re.search(rf"^{name}:\s+(\d+) kB", status, re.M) for name in ("VmRSS", "VmHWM"))
    if now and peak:
        return 1024 * int(now[1]), 1024 * int(peak[1])
    import resource  # not on every system

    # Only a second choice: on Linux it starts from the parent's peak.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most *= 1 if sys.platform == "darwin" else 1024
    return most, most


def host_free(root: Path = Path("/")) -> int:
    """Return the bytes that new processes can have, as far as the system and its groups allow."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.M)
    machine = 1024 * int(available[1]) if available else _UNKNOWN
    return max(0, min(machine, *_groups_free(root), _UNKNOWN))


def _groups_free(root: Path) -> Iterator[int]:
    """Yield what is free in each control group above this process: a container is one."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        base, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        if "memory" in controllers.split(","):
            base, limit, used = base / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        elif number != "0":
            continue
        here = base / path.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(base):
                break
            most, taken = _text(folder / limit).strip(), _text(folder / used).strip()
            if most.isdigit() and taken.isdigit():
                # Files read long ago count as taken, but give way.
                cache = re.search(r"^inactive_file (\d+)", _text(folder / "memory.stat"), re.M)
                yield int(most) - int(taken) + (int(cache[1]) if cache else 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
