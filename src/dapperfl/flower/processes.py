"""Flower's processes: started in a group of their own, and ended with all that they started.

Each is on a lifeline (see `lifeline`), so that nothing is left even if this process is killed.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dapperfl.environment import for_children
from dapperfl.errors import ConfigError, RunError

# Flower would look for its own server on this machine behind the proxy of the environment. Which
# spelling counts is not the same everywhere; all hosts, as a SOCKS proxy alone ends Flower.
DIRECT = {"NO_PROXY": "*", "no_proxy": "*"}
_LAST_WORDS = 2**16  # bytes
_GRACE = 8.0  # seconds to end by itself; a SuperNode tells its server that it goes


@dataclass(frozen=True)
class Child:
    """A process of Flower's that leads a group, and where it writes what it has to say."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    since: int  # where in the log this start of it begins

    def last_words(self) -> str:
        """Return the end of what it has written since it was started, if that is still there."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self.since, os.fstat(file.fileno()).st_size - _LAST_WORDS))
                return file.read().decode(errors="replace")
        except FileNotFoundError:  # moved away by whoever looks after logs here
            return ""

    def ended(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self.process.poll()

    def stop(self) -> None:
        """End it, and then whatever is left of its group."""
        with suppress(ProcessLookupError):
            self.process.terminate()
            # One that was stopped does not hear it.
            self.process.send_signal(signal.SIGCONT)
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)
        finally:  # also where somebody does not wait and presses Ctrl-C again
            kill_group(self.process.pid)
            self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()


def kill_group(group: int) -> None:
    """Kill all processes of a group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def require_flower() -> None:
    """Refuse to go on without the package that carries the messages."""
    for name in ("flwr", "cryptography"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"real devices need a package that is not installed ({name}); "
                'run: pip install "dapperfl[flower]"'
            )


def surroundings(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's processes: a home of their own, no proxy, no calls home.

    They start further ones by name, and those must find what this process finds.
    """
    programs = str(Path(sys.executable).parent)
    return {
        **for_children(),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONUNBUFFERED": "1",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **DIRECT,
        **more,
    }


@contextmanager
def running(
    module: str, arguments: list[str], *, log: Path, environment: Mapping[str, str]
) -> Iterator[Child]:
    """Start a module of this package as a process, and end it with all its own on the way out.

    Beside its log lies a note of its group while it runs; what an earlier one left is ended first.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    note = log.with_suffix(".pid")
    end_stale(note)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"dapperfl.flower.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        child = Child(module, process, log, file.tell())
    try:
        note.write_text(f"{process.pid}\n")
        yield child
    finally:
        child.stop()
        note.unlink(missing_ok=True)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on at this moment."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_port(host: str, port: int) -> None:
    """Refuse an address that this machine does not have, or a port that is taken."""
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise RunError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; "
            "choose another with --host and --port"
        ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def end_stale(note: Path) -> bool:
    """End what an earlier start has noted and left behind, if it is still Flower's.

    Where there is no /proc, the lifeline alone must do.
    """
    try:
        group = int(note.read_text())
    except (FileNotFoundError, ValueError):
        return False
    note.unlink()
    left = [each for each in Path("/proc").glob("[0-9]*") if _is_of(each, group)]
    if left:
        kill_group(group)
    return bool(left)


def _is_of(process: Path, group: int) -> bool:
    # Numbers are used again: a stranger may lead a group of this number by now.
    try:
        words = (process / "cmdline").read_bytes()
        return os.getpgid(int(process.name)) == group and (b"flwr" in words or b"flower" in words)
    except OSError:
        return False


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that it can end what it started."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
