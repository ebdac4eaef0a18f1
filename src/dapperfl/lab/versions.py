"""What a run's numbers depend on beside its config: versions, machine, threads, commit."""

import platform
import subprocess
from pathlib import Path

import torch

from dapperfl import __version__


def versions() -> dict[str, str | int]:
    """Return what must be equal for two runs of one config to agree bit for bit."""
    found: dict[str, str | int] = {
        "dapperfl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


def _commit() -> str | None:
    """Return the commit of the checkout this package lies in, marked if files differ from it."""
    checkout = Path(__file__).resolve().parents[3]  # <checkout>/src/dapperfl/lab/versions.py
    if not (checkout / ".git").exists():
        return None  # installed; a repository further up would be somebody else's
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40"]
    command += ["--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
