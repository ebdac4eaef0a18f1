"""Loose values (TOML, the command line) into the typed fields of frozen dataclasses, strictly.

Nothing here knows a key by name: type hints say what a value may be (ranges: `settings`).
"""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean

T = TypeVar("T")

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
    NoneType: '"none"',
}


@dataclass(frozen=True)
class Typed:
    """A value as somebody typed it after `--set key=`; what it means depends on the field."""

    text: str

    def value(self, hint: Any) -> Any:
        """Read the text as a TOML value, or as the plain string it is."""
        parsed = _toml_value(self.text)
        wants_text = any(_accepts_text(option) for option in _options(hint))
        # A seed or a date may be a perfectly good folder name.
        return self.text if wants_text and not _fits(parsed, hint) else parsed


def _toml_value(text: str) -> Any:
    # People write .5; TOML wants 0.5.
    for candidate in (text, re.sub(r"(?<![\w.])\.(?=\d)", "0.", text)):
        try:
            document = tomllib.loads(f"value = {candidate}")
        except tomllib.TOMLDecodeError:
            continue
        if document.keys() == {"value"}:
            return document["value"]
    return text


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _accepts_text(option: Any) -> bool:
    return option is str or (get_origin(option) is Literal and isinstance(get_args(option)[0], str))


def _accepts_table(hint: Any) -> bool:
    return any(get_origin(option) is Mapping for option in _options(hint))


def _fits(value: Any, hint: Any) -> bool:
    try:
        convert(value, hint, "")
    except ConfigError:
        return False
    return True


def convert(value: Any, hint: Any, key: str) -> Any:
    """Return the value in the type its field asks for.

    Raises:
        ConfigError: names the key, the value and what was expected.
    """
    if isinstance(value, Typed):
        value = value.value(hint)
    for option in _options(hint):
        if option is NoneType and value in (None, "none"):
            return None
    for option in _options(hint):
        found, result = _read(value, option, key)
        if found:
            return result
    raise ConfigError(f"{key} = {show(value)}: expected {expected(hint)}")


def _read(value: Any, option: Any, key: str) -> tuple[bool, Any]:
    origin = get_origin(option)
    if origin is Literal:
        same = (choice for choice in get_args(option) if type(choice) is type(value))
        return value in same, value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False, None
        item = get_args(option)[0]
        return True, tuple(convert(each, item, f"{key}[{i}]") for i, each in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return False, None
        item = get_args(option)[1]
        return True, {name: convert(each, item, f"{key}.{name}") for name, each in value.items()}
    if option is float:
        number = _finite(value)
        return number is not None, number
    # bool is a subclass of int, yet `rounds = true` is a mistake.
    return type(value) is option, value


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def expected(hint: Any) -> str:
    """Say in words what a field accepts."""
    words = []
    for option in _options(hint):
        if get_origin(option) is Literal:
            words.append(_either([show(choice) for choice in get_args(option)]))
        elif get_origin(option) is tuple:
            words.append(f"a list, each item {expected(get_args(option)[0])}")
        elif get_origin(option) is Mapping:
            words.append(f"a table, each value {expected(get_args(option)[1])}")
        else:
            words.append(_WORDS.get(option, "a type that no config file can hold"))
    return " or ".join(words)


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def show(value: Any) -> str:
    """Write a value the way a config file would."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list() | tuple():
            return f"[{', '.join(map(show, value))}]"
        case Mapping():
            return f"{{ {', '.join(f'{name} = {show(each)}' for name, each in value.items())} }}"
        case None:
            return '"none"'
        case Typed(text):
            return text
        case _:
            return str(value)


def is_among(key: str, names: Iterable[str]) -> bool:
    """Tell whether a dotted key is one of these, or in a table of these ("engine.")."""
    return any(key.startswith(each) if each.endswith(".") else key == each for each in names)


def unknown_key(key: str, name: str, known: Sequence[str]) -> ConfigError:
    """Return the error for a key that does not exist, with the nearest one or all there are."""
    return ConfigError(f'unknown key "{key}"{did_you_mean(name, known)}')


def fill(base: T, table: Mapping[str, Any], at: str = "") -> T:
    """Return `base` with the fields that `table` names, nested tables included."""
    start: Any = base  # the type checker has no word for "a dataclass"
    hints = get_type_hints(type(base))
    known = [each.name for each in fields(start)]
    changes: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{at}{name}"
        if name not in known:
            raise unknown_key(key, name, known)
        current: Any = getattr(base, name)
        if is_dataclass(current):
            changes[name] = fill(current, require_table(value, key), f"{key}.")
        elif isinstance(value, Mapping) and not _accepts_table(hints[name]):
            raise ConfigError(f'unknown key "{key}.{next(iter(value), "")}": {key} is not a table')
        else:
            changes[name] = convert(value, hints[name], key)
    changed: T = replace(start, **changes)
    return changed


def require_table(value: Any, key: str) -> Mapping[str, Any]:
    """Return the value if it is a table of keys; otherwise say how to write one."""
    if isinstance(value, Mapping):
        return value
    raise ConfigError(f"{key} = {show(value)}: {key} is a table; set one of its keys ({key}.…)")
