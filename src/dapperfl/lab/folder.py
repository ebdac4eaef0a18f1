"""The run folder: what lies where, who may write in it, and writing that cannot half happen."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapperfl.errors import CheckpointError

if TYPE_CHECKING:
    from dapperfl.core.state import State

_ABOUT = "about"  # the name of the facts in a file of tensors
_SUM = "sha256"  # of its tensors, among these facts


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config, with the versions it was started under."""
        return self.path / "config.toml"

    @property
    def allocation(self) -> Path:
        """Which device has which domain, level and number of samples."""
        return self.path / "allocation.json"

    @property
    def rounds(self) -> Path:
        """One line of JSON for each complete round."""
        return self.path / "rounds.jsonl"

    @property
    def summary(self) -> Path:
        """The results; it is written last, so its presence says that the run is finished."""
        return self.path / "summary.json"

    @property
    def checkpoint(self) -> Path:
        """What an interrupted run continues from."""
        return self.path / "checkpoint"

    @property
    def model(self) -> Path:
        """The final global model."""
        return self.path / "model.safetensors"

    def level(self, rho: float) -> Path:
        """The final compact model of one level."""
        rho = abs(rho)  # -0.0 is the level 0.0 as well
        short = f"{rho:.2f}"
        name = short if float(short) == rho else repr(rho)
        return self.path / "levels" / f"rho-{name}.safetensors"

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"

    def is_used(self) -> bool:
        """Say whether there is anything that a new run would overwrite."""
        if not self.path.exists():
            return False
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file; choose another --out")
        # Hidden files are our lock and what a killed process had not finished writing.
        return any(not entry.name.startswith(".") for entry in self.path.iterdir())

    @contextmanager
    def held(self, remedy: str | None = None) -> Iterator[None]:
        """Make the folder if need be, and keep every other process from writing in it.

        Args:
            remedy: What to do if that cannot be, where it is not to choose another --out.
        """
        import fcntl  # not on every system, and only writers need it

        with explained(self.path, remedy):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self._lock.open("a")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(
                    f"another process is writing to {self.path}; wait, or "
                    f"{remedy or 'choose another --out'}"
                ) from None
            yield


@contextmanager
def explained(folder: Path, remedy: str | None = None) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one line that says how to go on.

    Args:
        folder: Where the run is.
        remedy: What to do, where it is not to continue this run.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        again = remedy or f"when that is solved, continue with --out {folder} --resume"
        raise CheckpointError(
            f"cannot write {place}: {error.strerror or error}; {again}"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: whoever reads it sees all of the old or all of the new.

    Several processes may write the same file at once: the last one wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:  # a full disk does not say which file it was
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name must survive a power cut as well
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write readable, strict JSON."""
    write_atomically(path, f"{strict_json(value, indent=2)}\n".encode())


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that every reader accepts: nan and infinity become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case _:
            return value


def read_json(path: Path) -> Any:
    """Read a JSON file of a run folder."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


@contextmanager
def intact(path: Path, remedy: str) -> Iterator[None]:
    """Say of a file that turns out to be damaged, or not to be there, what to do."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}; {remedy}") from error


def read_table(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON file that names its values."""
    with intact(path, remedy):
        return {**read_json(path)}


def write_tensors(path: Path, state: "State", about: Mapping[str, Any]) -> None:
    """Write tensors as safetensors, with a few facts beside them as JSON."""
    from safetensors.torch import save  # and with it torch, which a small device may do without

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    # Under one name: safetensors writes several in any order, and equal runs are equal files.
    facts = {**about, _SUM: _checksum(tensors)}
    write_atomically(path, save(tensors, {_ABOUT: strict_json(facts)}))


def _checksum(tensors: "State") -> str:
    """Return the SHA-256 of tensors with their names: a disk may change a weight unseen."""
    import torch

    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def read_tensors(path: Path) -> tuple["State", dict[str, Any]]:
    """Read what `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            facts = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
            facts = facts.get(_ABOUT, facts)  # files of older versions have several names
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if facts.pop(_SUM, None) not in (None, _checksum(tensors)):  # older files have none
        raise CheckpointError(f"{path} is damaged: its tensors do not match their SHA-256")
    return tensors, facts
