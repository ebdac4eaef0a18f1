"""The small facts of a message, read one by one and believed only where they fit.

They are a JSON object. Whoever reads it names each key, its type and its range; a key too many,
too few or of another kind is a `MessageError`.
"""

import json
from collections.abc import Mapping
from typing import Any

from dapperfl.core.messages import Device
from dapperfl.errors import MessageError

TEXT_LIMIT = 300  # characters
SMALLEST, LARGEST = -(2**63), 2**63 - 1
MANY = 64  # metrics in one message


def write_facts(facts: Mapping[str, object]) -> bytes:
    """Return facts as JSON without spaces."""
    return json.dumps(facts, separators=(",", ":")).encode()


def read_facts(data: bytes | bytearray) -> "Facts":
    """Read what `write_facts` wrote.

    Raises:
        MessageError: If it is no JSON object.
    """
    try:
        values = json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise MessageError("the facts of the message are no JSON") from error
    return Facts(_object(values, "the facts of the message"))


def as_text(text: str) -> str:
    """Make any text fit for a message and a terminal: one line of printable characters."""
    return "".join(each if each.isprintable() else " " for each in text)[:TEXT_LIMIT]


class Facts:
    """A JSON object whose values are taken out by name; at the end it must be empty."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._left = dict(values)

    def integer(self, key: str, least: int = 0, most: int = LARGEST) -> int:
        """Take out a whole number within bounds."""
        return _integer(self._take(key), key, least, most)

    def number(self, key: str) -> float:
        """Take out any number, infinity and NaN included."""
        return _number(self._take(key), key)

    def flag(self, key: str) -> bool:
        """Take out a truth value."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise MessageError(f'"{key}" must be true or false')
        return value

    def text(self, key: str) -> str:
        """Take out one short printable line."""
        return _text(self._take(key), f'"{key}"')

    def numbers(self, key: str) -> dict[str, float]:
        """Take out some named numbers."""
        values = _object(self._take(key), f'"{key}"')
        if len(values) > MANY:
            raise MessageError(f'"{key}" has {len(values)} entries, expected at most {MANY}')
        return {_text(name, f'a name in "{key}"'): _number(v, name) for name, v in values.items()}

    def integers(self, key: str, count: int) -> list[int]:
        """Take out a list of so many whole numbers, none negative."""
        values = self._take(key)
        if not isinstance(values, list) or len(values) != count:
            raise MessageError(f'"{key}" must be a list of {count} whole numbers')
        return [_integer(value, key, 0, LARGEST) for value in values]

    def device(self, key: str) -> Device:
        """Take out a device."""
        inner = Facts(_object(self._take(key), f'"{key}"'))
        id_, domain = inner.integer("id"), inner.text("domain")
        device = Device(id_, domain, inner.number("rho"), inner.integer("num_samples"))
        inner.end()
        return device

    def end(self) -> None:
        """Refuse what nobody asked for."""
        if self._left:
            raise MessageError(f"the message has {len(self._left)} facts too many")

    def _take(self, key: str) -> Any:
        if key not in self._left:
            raise MessageError(f'the message does not say its "{key}"')
        return self._left.pop(key)


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MessageError(f"{what} must be a JSON object")
    return value


def _integer(value: object, key: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise MessageError(f'"{key}" must be a whole number')
    if not least <= value <= most:
        shown = value if abs(value) <= LARGEST else "far too large"
        raise MessageError(f'"{key}" is {shown}, expected between {least} and {most}')
    return value


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MessageError(f'"{key}" must be a number')
    if isinstance(value, int) and abs(value) > LARGEST:
        raise MessageError(f'"{key}" is far too large')
    return float(value)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT_LIMIT or not value.isprintable():
        raise MessageError(f"{what} must be one line of at most {TEXT_LIMIT} printable characters")
    return value
