"""Names that users type: the nearest right one for a wrong one, and objects from outside."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

from dapperfl.errors import ConfigError


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
