"""What a net holds beside its weights, kept as every client should find it.

A net that stays in its place serves one client after another. Whatever its forward has put aside
for one of them, a counter, another tensor in a buffer's place, an entry of a list, must not reach
the next.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, type(None))
_MODULES = frozenset(vars(nn.Module()))  # what every module holds
Notes = list[dict[str, Any]]  # of each part: its plain values by name


class Belongings:
    """The places of a net's tensors, its numbers, and the things of a user's parts."""

    def __init__(self, module: nn.Module) -> None:
        self.parts = list(module.modules())
        self.places: list[tuple[dict[str, Any], str, Tensor]] = [
            (held, name, tensor)
            for part in self.parts
            for held in (part._parameters, part._buffers)
            for name, tensor in held.items()
            if tensor is not None
        ]
        self.first = self.notes()  # as every client finds them
        # Whatever else a user's parts hold: tensors that are no buffers, lists, generators.
        self.users = [p for p in self.parts if not type(p).__module__.startswith("torch.")]
        self.held = [set(vars(part)) for part in self.users]
        self.things = self._copied([_things(part) for part in self.users])

    def notes(self) -> Notes:
        """Return the plain values that each part of the net holds, such as a counter."""
        return [
            {
                name: value
                for name, value in vars(part).items()
                if name != "training" and isinstance(value, _PLAIN)
            }
            for part in self.parts
        ]

    def take_back(self, notes: Notes) -> None:
        """Let the parts of the net hold such values as they did."""
        for part, values in zip(self.parts, notes, strict=True):
            vars(part).update(values)

    def forget(self) -> None:
        """Let a user's parts hold what they did at first, and nothing beside it."""
        first = self._copied(self.things)
        for part, names, things in zip(self.users, self.held, first, strict=True):
            for name in vars(part).keys() - names:
                del vars(part)[name]
            vars(part).update(things)

    def put_back(self) -> list[str]:
        """Put the net's own tensors back where its forward has put others; return their names.

        `self.mean = 0.9 * self.mean + …` does so: the new values stay, in the place of the old.
        """
        replaced = []
        for held, name, own in self.places:
            new = held.get(name)
            if new is not own and new is not None:
                with torch.no_grad():
                    own.copy_(new)
                held[name] = own
                replaced.append(name)
        return replaced

    def _copied(self, things: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Copy what parts of the net hold; parts and state among it stay the net's own."""
        known = (*self.parts, *(tensor for *_, tensor in self.places))
        return copy.deepcopy(things, {id(each): each for each in known}) if any(things) else things


def _things(part: nn.Module) -> dict[str, Any]:
    """Return what a part of a net holds beside its state, plain values and scripted functions."""
    return {
        name: value
        for name, value in vars(part).items()
        if name not in _MODULES and not isinstance(value, (*_PLAIN, torch.jit.ScriptFunction))
    }
