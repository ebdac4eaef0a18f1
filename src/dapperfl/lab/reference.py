"""Every key that can be set, read off the dataclasses, for `dapperfl list` and the docs.

`python -m dapperfl.lab.reference > docs/configuration.md` writes the page anew.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from dapperfl import methods, nets
from dapperfl.data import benchmarks
from dapperfl.lab.config import Config, DataConfig, MethodConfig
from dapperfl.lab.fields import expected, show
from dapperfl.methods.base import Method

# The fields whose keys depend on what is chosen: they are listed apart.
_CHOSEN: Mapping[type[Any], str] = {MethodConfig: "fields", DataConfig: "options"}


@dataclass(frozen=True)
class Key:
    """One thing to set."""

    name: str
    expected: str
    default: Any
    help: str
    presets: Mapping[str, Any]  # the presets that differ from the default


def names(kind: str) -> list[str]:
    """Return the names of all "methods", "nets" or "benchmarks"."""
    rooms = {"methods": methods, "nets": nets, "benchmarks": benchmarks}
    return list(rooms[kind].names())


def config_keys() -> dict[str, list[Key]]:
    """Return the keys of every table; "" is the top level. Methods add theirs to [method]."""
    return dict(_tables(Config()))


def _tables(config: Any, at: str = "") -> Iterator[tuple[str, list[Key]]]:
    yield at, _keys(config)
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from _tables(value, f"{at}.{each.name}" if at else each.name)


def method_keys(name: str) -> list[Key]:
    """Return the fields of a method, with what its presets make of them."""
    kind = methods.load(name)
    start = kind.from_preset()
    return _keys(start, {preset: kind.from_preset(preset) for preset in kind.presets})


def common_keys() -> list[Key]:
    """Return the fields that every method has."""
    return _keys(Method())


def own_keys(name: str) -> list[Key]:
    """Return the fields of a method that others lack, or that have another default in it."""
    common = common_keys()
    return [key for key in method_keys(name) if key not in common]


def benchmark_keys(name: str) -> list[Key]:
    """Return the options of a benchmark."""
    return [
        Key(key, expected(option.hint), option.default, option.help, {})
        for key, option in benchmarks.options(name).items()
    ]


def describe(name: str) -> Iterator[str]:
    """Yield a method's purpose, then two lines for each of its fields."""
    yield purpose(name)
    for key in method_keys(name):
        presets = "".join(f", {show(value)} in {name}" for name, value in key.presets.items())
        yield f"{key.name} = {show(key.default)}{presets}"
        yield f"    {key.help} ({key.expected})"


def purpose(name: str) -> str:
    """Return the line that opens a method's file."""
    kind = methods.load(name)
    text = sys.modules[kind.__module__].__doc__ or kind.__doc__ or kind.__name__
    return text.strip().splitlines()[0]


def _keys(config: Any, presets: Mapping[str, Any] | None = None) -> list[Key]:
    hints = get_type_hints(type(config))
    keys = []
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value) or each.name == _CHOSEN.get(type(config)):
            continue
        others = {name: getattr(other, each.name) for name, other in (presets or {}).items()}
        changed = {name: other for name, other in others.items() if other != value}
        words = [expected(hints[each.name]), str(each.metadata.get("range") or "")]
        text = each.metadata.get("help", "")  # a user's own method may have none
        keys.append(Key(each.name, ", ".join(filter(None, words)), value, text, changed))
    return keys


def markdown() -> str:
    """Return the page that documents every key."""
    parts = [_INTRODUCTION]
    for table, keys in config_keys().items():
        parts.append(f"## `[{table}]`\n" if table else "## Top level\n")
        parts.append(_rows(keys))
    for name in benchmarks.names():
        if keys := benchmark_keys(name):
            parts.append(f'## `[data]` with `benchmark = "{name}"`\n')
            parts.append(_rows(keys))
    parts.append(f"## `[method]`, whatever its name\n\n{_COMMON}\n")
    parts.append(_rows(common_keys()))
    for name in methods.names():
        parts.append(f'## `[method]` with `name = "{name}"`\n\n{purpose(name)}\n')
        keys = own_keys(name)
        parts.append(_rows(keys) if keys else "No fields of its own.\n")
    return "\n".join(parts)


def _rows(keys: Iterable[Key]) -> str:
    lines = ["| key | default | value | what it does |", "|---|---|---|---|"]
    for key in keys:
        presets = "".join(f"; {show(v)} in `{name}`" for name, v in key.presets.items())
        cells = (f"`{key.name}`", f"`{show(key.default)}`{presets}", key.expected, key.help)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


_INTRODUCTION = """\
# Configuration

Settings come from three places, the later ones winning: the defaults below, which are the demo;
a TOML file (`dapperfl run CONFIG.toml`); and `--set key=value` on the command line, where keys are
dotted (`--set train.lr=0.01`) and values are TOML (`--set fleet.rhos=[0,0.5]`) or plain text.

`--set method=fedavg` is short for `--set method.name=fedavg`, likewise `net` for `net.name`, `data`
for `data.benchmark` and `engine` for `engine.name`; these are applied before all other keys. In a
file they are tables. Choosing another method or preset on the command line drops what the file
says about the fields of the old one.

`dapperfl show-config` prints the config that a command would run, `dapperfl list methods --verbose`
the fields of each method. The text `"none"` stands for no value. Where a number has a smaller
range than its type, the table says so; anything else is an error that names the key. Behind a
default stands what presets (`method.preset`) make of it.
"""

_COMMON = """\
Every method has these. The table of a method names one again where it gives it another default."""


if __name__ == "__main__":
    sys.stdout.write(markdown())
