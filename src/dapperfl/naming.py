"""Names that users type: the nearest right one for a wrong one, and objects from outside."""

import difflib
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dapperfl.errors import ConfigError, DapperFLError, is_of_memory

_NAMES = (ImportError, AttributeError, SyntaxError, ValueError)  # what a wrong name leads to


def one_line(name: str) -> str:
    """Return a name without the ends of lines that names of folders may have."""
    return " ".join(name.split())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known name, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f'; did you mean "{close[0]}"?' if close else f"; there are {', '.join(names)}"


def load_object(path: str) -> Any:
    """Import `package.module:name` from anywhere on the Python path."""
    module, _, name = path.partition(":")
    try:
        if module.startswith("."):
            raise ImportError("there is no package that it could be relative to")
        with users_code(f'cannot load "{path}"', among=_NAMES):
            return getattr(importlib.import_module(module), name)
    except _NAMES as error:
        raise ConfigError(
            f'cannot load "{path}": {error}; it must be package.module:name, importable from here '
            "(install the package, or set PYTHONPATH)"
        ) from error


@contextmanager
def users_code(failed: str, *, among: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what a user's code raises into one line that begins with what has failed.

    Args:
        failed: What has failed.
        among: What is left for the caller to explain.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # a script without a main guard ends us as well
        if isinstance(error, (DapperFLError, *among)) or is_of_memory(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        raise ConfigError(f"{failed}: {why}; DAPPERFL_DEBUG=1 shows where") from error
