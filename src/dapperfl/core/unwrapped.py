"""Calls that torch would hide from a watcher, run as they were written.

A reentrant checkpoint hides that anything is learnt inside, a scripted function all that it does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction


@contextmanager
def unwrapped() -> Iterator[None]:
    """Let checkpoints and functions under `torch.jit.script` run what they hold."""
    checkpoint: Any = CheckpointFunction
    scripted: Any = torch.jit.ScriptFunction
    saving, compiled = checkpoint.apply, scripted.__call__

    def as_written(function: Any, *args: Any, **kwargs: Any) -> Any:
        plain = getattr(function, "_torchdynamo_inline", None)  # one that was loaded has none
        return plain(*args, **kwargs) if plain else compiled(function, *args, **kwargs)

    checkpoint.apply = lambda run, _, *args: run(*args)
    scripted.__call__ = as_written
    try:
        yield
    finally:
        checkpoint.apply, scripted.__call__ = saving, compiled
