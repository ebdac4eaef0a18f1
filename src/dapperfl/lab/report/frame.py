"""The paper a picture is drawn on: axes with round numbers, labels, and a size that fits a phone.

Every picture is as wide as a phone's screen, so that its words keep their size there; on a wide
screen pictures stand beside each other instead of growing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dapperfl.lab.display import human
from dapperfl.lab.report.markup import Markup, element
from dapperfl.lab.report.scales import Scale

WIDTH = 380
HEIGHT = 250
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 42
Anchor = Literal["start", "middle", "end"]


def plain(value: float) -> str:
    """Write a tick as short as it goes."""
    return f"{value:g}"


def short(value: float) -> str:
    """Write a tick with a decimal prefix."""
    number, _, prefix = human(value).partition(" ")
    return f"{float(number):g}{prefix and ' '}{prefix}"


def level_name(rho: float) -> str:
    """Name a level, in one piece."""
    return f"ρ\u00a0=\u00a0{rho:g}"


@dataclass(frozen=True)
class Axis:
    """One axis: its scale, what it shows in which unit, and how its ticks are written."""

    scale: Scale
    label: str
    write: Callable[[float], str] = plain
    whole: bool = False  # ticks at whole numbers only

    def ticks(self) -> list[float]:
        """Return the values that are written at the axis."""
        return self.scale.ticks(least_step=1 if self.whole else 0)


def x_scale(low: float, high: float, right: float = RIGHT) -> Scale:
    """Return a scale over the paper's width; a single value gets some room."""
    return Scale(low, high if high > low else low + 1, LEFT, WIDTH - right)


def y_scale(low: float, high: float, height: float = HEIGHT) -> Scale:
    """Return a scale over the paper's height, upwards."""
    return Scale(low, high if high > low else low + 1, height - BOTTOM, TOP)


def across(axis: Axis, height: float = HEIGHT) -> list[Markup]:
    """Draw a horizontal axis at the bottom, with lines through the paper."""
    floor, parts = height - BOTTOM, []
    for tick in axis.ticks():
        x = axis.scale(tick)
        parts.append(element("path", class_="grid", d=f"M{x:g} {TOP}V{floor:g}"))
        parts.append(words(axis.write(tick), x, floor + 15, anchor="middle", kind="tick"))
    middle = (axis.scale.start + axis.scale.end) / 2
    return [*parts, words(axis.label, middle, height - 8, anchor="middle")]


def upwards(axis: Axis) -> list[Markup]:
    """Draw a vertical axis at the left, with lines through the paper."""
    parts = []
    for tick in axis.ticks():
        y = axis.scale(tick)
        parts.append(element("path", class_="grid", d=f"M{LEFT} {y:g}H{WIDTH - RIGHT}"))
        parts.append(words(axis.write(tick), LEFT - 6, y + 4, anchor="end", kind="tick"))
    middle = (axis.scale.start + axis.scale.end) / 2
    return [*parts, words(axis.label, 12, middle, anchor="middle", turned=True)]


def words(
    word: str,
    x: float,
    y: float,
    *,
    anchor: Anchor = "start",
    kind: str = "word",
    turned: bool = False,
) -> Markup:
    """Write into a picture; turned words run upwards."""
    place = {"x": f"{x:g}", "y": f"{y:g}", "text_anchor": anchor}
    turn = f"rotate(-90 {x:g} {y:g})" if turned else None
    return element("text", word, class_=kind, transform=turn, **place)


def figure(title: str, *content: Markup, height: float = HEIGHT) -> Markup:
    """Return a picture with its title."""
    picture = element(
        "svg",
        element("title", title),
        *content,
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_label=title,
    )
    return element("figure", element("figcaption", title), picture)
