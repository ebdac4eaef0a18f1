"""How a hyper-parameter or a config key is declared: default, help, and the values it may have."""

import math
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dapperfl.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """The values a number may have; `above` and `below` exclude their end."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most and self.above < value < self.below

    def __str__(self) -> str:
        if self.at_least == self.at_most:
            return f"{self.at_least:g}"
        ends = [
            ("at least", self.at_least),
            ("above", self.above),
            ("at most", self.at_most),
            ("below", self.below),
        ]
        return " and ".join(f"{word} {end:g}" for word, end in ends if math.isfinite(end))


def setting(default: Any, text: str, allowed: Range | None = None) -> Any:
    """Declare a field by its default, one line of help and the range of its values."""
    return field(default=default, metadata={"help": text, "range": allowed})


def with_default(owner: type, name: str, default: Any) -> Any:
    """Declare a field of a base class anew, with another default and the same help and range."""
    (inherited,) = (each for each in fields(owner) if each.name == name)
    return field(default=default, metadata=inherited.metadata)


def check_settings(owner: Any, at: str = "") -> None:
    """Refuse values outside the range or the choices that their fields declare.

    Args:
        owner: A dataclass instance; fields without a range or a Literal are not looked at.
        at: What stands before a field's name in a message, such as "train.".
    """
    hints = get_type_hints(type(owner))
    for each in fields(owner):
        check_setting(each, hints[each.name], getattr(owner, each.name), at)


def check_setting(declared: Field[Any], hint: Any, value: Any, at: str = "") -> None:
    """Refuse a value outside the range or the choices that its field declares."""
    key, allowed = f"{at}{declared.name}", declared.metadata.get("range")
    if get_origin(hint) is Literal and value not in get_args(hint):
        choices = ", ".join(map(str, get_args(hint)))
        raise ConfigError(f"{key} = {value}: expected one of {choices}")
    if allowed is None or value is None:
        return
    numbers = list(value) if isinstance(value, tuple) else [value]
    if any(number not in allowed for number in numbers):
        shown = numbers if isinstance(value, tuple) else value
        raise ConfigError(f"{key} = {shown}: expected {allowed}")
