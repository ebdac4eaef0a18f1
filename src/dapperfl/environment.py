"""What libraries read from the environment when they start, and what they should find there.

Whoever has set one of these is left alone.
"""

import ctypes
import os
from pathlib import Path

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST = 32  # queues between a process and a GPU that CUDA offers
# NVIDIA's multi-process service shares out 120 among its processes, two each unless they ask, and
# turns away who comes when none are left. Some are kept for processes that we know nothing of.
_TOGETHER = 96
# glibc gives large blocks back to the system when they are free, and the next training step asks
# for as many again, page by page. These tell it what to keep: the largest block, and how many bytes
# in all; by name in the environment of processes to come, by number in the one that runs.
_KEPT = {"MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TRIM_THRESHOLD_": (-1, 256 << 20)}


def wanted() -> dict[str, str]:
    """Return what a process should find."""
    # Threads that spin long while they wait make a shared machine several times slower. GNU
    # OpenMP reads this when torch is first imported.
    found = {"GOMP_SPINCOUNT": "10000"}
    found |= {name: str(size) for name, (_, size) in _KEPT.items()}
    # With eight queues, as CUDA has it, the streams of ten clients wait for each other. It is read
    # when a process first uses the GPU. How many others have to share them, a process cannot know.
    if not _by_service():
        found[QUEUES] = str(_MOST)
    return found


def prepare() -> None:
    """Set in this process what is wanted and not set."""
    for name, value in wanted().items():
        if name in _KEPT and name not in os.environ:
            _tell_malloc(*_KEPT[name])
        os.environ.setdefault(name, value)


def _tell_malloc(option: int, value: int) -> None:
    """Set an option of glibc's malloc, where that is the one."""
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if libc is not None and hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(option, value)


def for_children(together: int | None = None) -> dict[str, str]:
    """Return the environment of a process to be started from this one.

    Args:
        together: How many of them use a GPU at the same time, if that is known.
    """
    found = {**wanted(), **os.environ}
    if together is not None and _by_service():
        found.setdefault(QUEUES, str(max(2, min(_MOST, _TOGETHER // together))))
    return found


def _by_service() -> bool:
    """Tell whether processes come to the GPU by way of the multi-process service."""
    place = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return (Path(place) / "control").exists()
