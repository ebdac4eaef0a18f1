"""What libraries read from the environment when they start, and what they should find there.

Whoever has set one of these is left alone.
"""

import os
from collections.abc import Mapping

WANTED: Mapping[str, str] = {
    # Threads that spin long while they wait make a shared machine several times slower. GNU
    # OpenMP reads this when torch is first imported.
    "GOMP_SPINCOUNT": "10000",
    # Queues between the host and a GPU: with eight, as CUDA has it, the streams of ten clients
    # wait for each other. Read when a process first uses the GPU.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}


def prepare() -> None:
    """Set in this process what is wanted and not set."""
    for name, value in WANTED.items():
        os.environ.setdefault(name, value)


def for_children() -> dict[str, str]:
    """Return the environment of a process to be started from this one."""
    return {**WANTED, **os.environ}
