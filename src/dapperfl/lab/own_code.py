"""Code of somebody's own that a run is computed by: whether its file is still the one it was."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config
from dapperfl.naming import users_code

_MARK = "source of "  # and the module: a key of what a run was started under


def own_code(config: Config) -> dict[str, str]:
    """Return a mark for the file of each module of one's own that a config names."""
    marked = ((module, file, _mark(file)) for module, file in _files(config))
    return {f"{_MARK}{module}": mark for module, _, mark in marked if mark is not None}


def changed_code(config: Config, then: Mapping[str, Any]) -> list[Path]:
    """Return the files that are not what they were when a run was started.

    Args:
        config: What names the modules.
        then: What the run was started under; a module without a mark there is of an older run.
    """
    known = ((file, then.get(f"{_MARK}{module}"), _mark(file)) for module, file in _files(config))
    return [file for file, before, now in known if None not in (before, now) and before != now]


def named(files: Iterable[Path]) -> str:
    """Begin a sentence of what has happened to some files."""
    names = [file.name for file in files]
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} changed"


def _files(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the modules that a config names, each once, with their files."""
    names = (config.method.name, config.net.name, config.data.benchmark)
    for module in dict.fromkeys(name.partition(":")[0] for name in names if ":" in name):
        # A package runs its code when it is looked into; what that raises, a run says better.
        with suppress(ConfigError), users_code(f'cannot find "{module}"'):
            spec = find_spec(module)
            if spec is not None and spec.has_location and spec.origin is not None:
                yield module, Path(spec.origin)


def _mark(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:  # within an archive, or gone
        return None
