"""How groups are told apart: colour, dashes and the shape of their points, never colour alone."""

from dataclasses import dataclass

from dapperfl.lab.groups import Group
from dapperfl.lab.report.markup import Markup, element

# Four dashes and seven shapes make 28 looks, for eyes that see no colour.
COLOURS = 7  # .pen-0 … .pen-6 in style.css: Okabe and Ito's, for light and for dark paper
_DASHES = (None, "7 3", "2 2.5", "9 3 2 3")
_SHAPES = (
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",  # circle
    "M-3.3-3.3h6.6v6.6h-6.6z",  # square
    "M0-4.4L4.2 3.2H-4.2z",  # triangle
    "M0-4.8L4.8 0L0 4.8L-4.8 0z",  # diamond
    "M-4.2-3.2H4.2L0 4.4z",  # triangle, point down
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # cross
    "M0-5L1.3-1.6L4.8-1.5L2-.6L3 4L0 1.6L-3 4L-2-.6L-4.8-1.5L-1.3-1.6z",  # star
)

Point = tuple[float, float]


@dataclass(frozen=True)
class Pen:
    """Draws what belongs to one group."""

    index: int

    def line(self, points: list[Point]) -> Markup:
        """Draw a line through points."""
        return element(
            "path", class_="line", d=f"M{_path(points)}", stroke_dasharray=self._dashes()
        )

    def band(self, low: list[Point], high: list[Point]) -> Markup:
        """Fill the space between two lines."""
        return element("path", class_="band", d=f"M{_path(low)}L{_path(high[::-1])}Z")

    def dot(self, at: Point, tip: str = "") -> Markup:
        """Draw the group's shape, with words for whoever points at it."""
        shape = _SHAPES[self.index % len(_SHAPES)]
        title = [element("title", tip)] if tip else []
        place = f"translate({at[0]} {at[1]})"
        return element("path", *title, class_="dot", d=shape, transform=place)

    def whisker(self, start: Point, end: Point) -> Markup:
        """Draw a range as a thin line."""
        return element("path", class_="whisker", d=f"M{_path([start, end])}")

    def group(self, *parts: Markup) -> Markup:
        """Put parts together, so that they share a colour and can be hidden together."""
        return element("g", *parts, class_=self._colour(), data_group=self.index)

    def sample(self, label: str) -> Markup:
        """Return an entry of a legend."""
        strokes = [self.line([(1, 8), (35, 8)]), self.dot((18, 8))]
        picture = element(
            "svg",
            element("g", *strokes, class_=self._colour()),
            viewBox="0 0 36 16",
            width=36,
            height=16,
            aria_hidden="true",
        )
        return element("li", picture, element("span", label), data_toggle=self.index)

    def _colour(self) -> str:
        return f"pen-{self.index % COLOURS}"

    def _dashes(self) -> str | None:
        return _DASHES[self.index % len(_DASHES)]


def legend(groups: list[Group]) -> Markup:
    """Say which line is whose; groups are drawn with the pen of their place in the list."""
    entries = [Pen(index).sample(group.label) for index, group in enumerate(groups)]
    return element("ul", *entries, class_="legend")


def _path(points: list[Point]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in points)
