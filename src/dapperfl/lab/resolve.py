"""Where a run's settings come from, in one order: defaults < TOML file < `--set`."""

import logging
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config, MethodConfig, from_table, to_keys
from dapperfl.lab.fields import Typed, show
from dapperfl.lab.younger import without

_log = logging.getLogger(__name__)

# `--set method=fedavg` for `--set method.name=fedavg`; a file writes the table.
_SHORT = {
    "method": "method.name",
    "net": "net.name",
    "data": "data.benchmark",
    "engine": "engine.name",
}
META = "meta"  # the table of a run folder's config.toml that says where it came from


def resolve(path: Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Return the config of a file (the demo's without one) with `key=value` overrides."""
    return _resolved(read_toml(path) if path else {}, overrides)


def resolve_stored(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Return the config of a run folder; what it lacks is what its run was without, not a default.

    A folder's file spells out every setting that there was when the run was started.
    """
    table = read_toml(path)
    today = to_keys(_resolved(deepcopy(table), ()))
    for key, value in without(today["method.name"]).items():
        if key in today:
            _fill(table, key, value)
    return _resolved(table, overrides)


def _resolved(table: dict[str, Any], overrides: Iterable[str]) -> Config:
    table.pop(META, None)
    given = [_split(text) for text in overrides]
    # What is run decides which other keys exist, so it goes first whatever the order typed.
    given.sort(key=lambda pair: pair[0] not in _SHORT.values())
    _forget_old_method(table, dict(given))
    for key, value in given:
        _put(table, key, value)
    return from_table(table)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; whatever is wrong with it becomes one clear line."""
    try:
        # Some editors begin a file with a mark of its encoding, which nobody sees.
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        way = "; a setting is --set KEY=VALUE, in quotes if there are braces"
        raise ConfigError(
            f"there is no config file {path}{way if '=' in path.name else ''}"
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder, not a config file; to continue a run: --out {path} --resume"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for short, key in _SHORT.items():
        if short in table and not isinstance(table[short], dict):
            name = key.rpartition(".")[2]
            raise ConfigError(
                f"{path}: {short} = {show(table[short])}: in a file {short} is a table; "
                f"write [{short}] and below it {name} = {show(table[short])}"
            )
    return table


def _split(text: str) -> tuple[str, Typed]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ConfigError(f'--set {text}: expected key=value, such as "--set train.lr=0.01"')
    return _SHORT.get(key, key), Typed(value.strip())


def _forget_old_method(table: dict[str, Any], given: Mapping[str, Typed]) -> None:
    """Drop the file's settings of a method (or preset) that the command line replaces."""
    written = table.get("method", {})
    default = MethodConfig()
    old_name = written.get("name", default.name)
    old_preset = written.get("preset", default.preset)
    new_name = _text(given.get("method.name"), old_name)
    new_preset = _text(given.get("method.preset"), old_preset)
    if new_name != old_name:
        dropped, kept, change = written.keys() - {"name"}, {}, f'method "{new_name}"'
    elif new_preset != old_preset:
        # A file that spells out all fields would otherwise leave nothing of the new preset.
        dropped, kept = written.keys() - {"name", "preset"}, {"name": old_name}
        change = f'preset "{new_preset}"'
    else:
        return
    table["method"] = kept
    if dropped:
        keys = ", ".join(f"method.{name}" for name in sorted(dropped))
        _log.info("%s chosen: the file's %s dropped", change, keys)


def _text(typed: Typed | None, otherwise: str) -> str:
    return otherwise if typed is None else str(typed.value(str))


def _fill(table: dict[str, Any], key: str, value: Any) -> None:
    part, _, name = key.partition(".")
    table.setdefault(part, {}).setdefault(name, value)


def _put(table: dict[str, Any], key: str, value: Typed) -> None:
    *parents, name = key.split(".")
    for depth, parent in enumerate(parents):
        below: Any = table.setdefault(parent, {})
        if not isinstance(below, dict):
            above = ".".join(parents[: depth + 1])
            raise ConfigError(f'unknown key "{key}": {above} is a value, not a table')
        table = below
    table[name] = value
