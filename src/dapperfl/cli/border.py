"""The border of the process: errors become one line and an exit code, notes go to stderr."""

import errno
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from dapperfl.errors import ConfigError, DapperFLError, is_of_memory
from dapperfl.lab.notes import heard


@contextmanager
def border(*, interrupted: str = "interrupted; nothing was written") -> Iterator[None]:
    """Show what is logged, and end with one line and an exit code instead of a traceback.

    Args:
        interrupted: what to say to somebody who pressed Ctrl-C.
    """
    try:
        with heard(_Notes(logging.INFO)):
            yield
    except KeyboardInterrupt:
        stop(interrupted, 130)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (DapperFLError, OSError, UnicodeEncodeError) as error:
        said = _said(error)
        if said is None or os.environ.get("DAPPERFL_DEBUG"):
            raise
        stop(f"error: {said}", 2 if isinstance(error, ConfigError) else 1)
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error) or os.environ.get("DAPPERFL_DEBUG"):
            raise
        stop(f"error: too little memory: {error}; what is on the disk stays", 1)


def _said(error: Exception) -> str | None:
    """Return the line that people see; None if the error is a mistake in the code."""
    if not isinstance(error, UnicodeEncodeError):
        return str(error)
    wrong = error.object[error.start : error.end]
    if not all("\udc80" <= letter <= "\udcff" for letter in wrong):  # as Python reads such bytes
        return None
    return f"a name has bytes that are no text here ({wrong!a}); use another name"


def show_anything() -> None:
    """Escape what the terminal's encoding lacks: a name of a domain is no reason to end a run."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Print a line of what goes on for long; a disk too full for it is no reason to end that."""
    try:
        typer.echo(text)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def stop(text: str, code: int) -> NoReturn:
    """End the process with one line on stderr."""
    typer.echo(" ".join(text.split()), err=True)
    raise typer.Exit(code) from None


class _Notes(logging.Handler):
    """Shows what the package logs, a line each, on whatever stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        word = "note" if record.levelno < logging.WARNING else record.levelname.lower()
        sys.stderr.write(f"{word}: {record.getMessage()}\n")
