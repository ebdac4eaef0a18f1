"""Names that users type: the nearest right one for a wrong one, and objects from outside."""

import difflib
import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dapperfl.errors import ConfigError, DapperFLError, is_of_memory


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
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise ConfigError(
            f'cannot load "{path}": {error}; it must be package.module:name, importable from here '
            "(install the package, or set PYTHONPATH)"
        ) from error


@contextmanager
def users_code(failed: str) -> Iterator[None]:
    """Turn what a user's function raises into one line that begins with what has failed."""
    try:
        yield
    except DapperFLError:
        raise
    except Exception as error:
        if is_of_memory(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{failed}: {why}; DAPPERFL_DEBUG=1 shows where") from error
