"""Which key a device's number belongs to, so that no other key can speak under it.

Flower knows a device by its key and gives each key a node of its own; the number is the device's
own word. It belongs to the key whose file is named after it, as `dapperfl certs` names them. Any
other belongs to the first key that joined with it, until that key joins with another number or is
taken out of the server's folder.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dapperfl.errors import MessageError

_NAMED = re.compile(r"device-(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class Keyring:
    """Who has which key; empty where devices have none."""

    nodes: Mapping[int, str] = field(default_factory=dict)  # keys by Flower's node
    named: Mapping[int, str] = field(default_factory=dict)  # keys by the number in their file name
    claims: Mapping[str, int] = field(default_factory=dict)  # the number that each key joined with

    @classmethod
    def of(cls, nodes: Mapping[int, bytes], files: Mapping[str, bytes]) -> "Keyring":
        """Build it from the keys that were registered, and those in files, by name."""
        found = ((_NAMED.fullmatch(name), key) for name, key in files.items())
        named = {int(match[1]): _mark(key) for match, key in found if match}
        return cls({node: _mark(key) for node, key in nodes.items()}, named)

    def check(self, number: int, node: int) -> None:
        """Refuse a node that gives the number of another key.

        Raises:
            MessageError: It does.
        """
        if self._owner(number) not in (None, self.nodes.get(node)):
            raise MessageError(
                f"device {number} belongs to another key; give this one's number with --id, or "
                f"name its public half device-{number}.pub in the server's folder of keys"
            )

    def number_of(self, node: int) -> int | None:
        """Return the device that a node's key is known to be of; None if nothing is known."""
        key = self.nodes.get(node)
        named = (number for number, each in self.named.items() if each == key)
        return None if key is None else next(named, self.claims.get(key))

    def claimed(self, number: int, node: int) -> "Keyring":
        """Return the keyring after a node has joined with a number."""
        key = self.nodes.get(node)
        return self if key is None else replace(self, claims={**self.claims, key: number})

    def with_claims(self, stored: Mapping[str, Any]) -> "Keyring":
        """Return it with what was claimed before; what keys have claimed that are gone is free."""
        here = set(self.nodes.values())
        return replace(self, claims={key: int(n) for key, n in stored.items() if key in here})

    def to_json(self) -> dict[str, dict[str, str]]:
        """Return what the one who registers keys tells the one who is asked for numbers."""
        parts = {"nodes": self.nodes, "named": self.named}
        return {name: {str(each): key for each, key in of.items()} for name, of in parts.items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Mapping[str, str]]) -> "Keyring":
        """Read back what `to_json` returned."""
        nodes, named = (
            {int(each): str(key) for each, key in stored[part].items()}
            for part in ("nodes", "named")
        )
        return cls(nodes, named)

    def _owner(self, number: int) -> str | None:
        first = (key for key, claimed in self.claims.items() if claimed == number)
        return self.named.get(number) or next(first, None)


def _mark(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
