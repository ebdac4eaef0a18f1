"""HTML and SVG that cannot be broken by a name: whatever is not marked as markup is escaped."""

from html import escape
from typing import Any

_VOID = {"meta", "br"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: Any) -> Markup:
    """Escape a value, unless it is markup."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def join(*parts: Any) -> Markup:
    """Put pieces together, each escaped unless it is markup."""
    return Markup("".join(map(text, parts)))


def element(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Return an element.

    An attribute that is None is left out; `class_` means class, and `stroke_width` stroke-width.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")
