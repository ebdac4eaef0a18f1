"""What accuracy costs: bytes on the way up, and parameters on a device."""

from collections.abc import Mapping
from typing import Any

from dapperfl.lab.groups import Group, Spread, spread
from dapperfl.lab.report.curves import ACCURACY
from dapperfl.lab.report.frame import (
    Axis,
    across,
    figure,
    level_name,
    short,
    upwards,
    x_scale,
    y_scale,
)
from dapperfl.lab.report.markup import Markup, element
from dapperfl.lab.report.pens import Pen
from dapperfl.lab.report.scales import around

Priced = tuple[float, Spread, str]  # what it costs, how accurate it is, and what it is


def prices(groups: list[Group]) -> Markup:
    """Draw accuracy against the upload, and the levels' compact nets against their size."""
    upload = [[(group.cost("bytes_up").mean, group.mark("last5"), group.label)] for group in groups]
    figures = [
        _scatter("Global model: accuracy against upload", upload, "bytes a client sends a round")
    ]
    levels = [
        [
            (level["parameters"], accuracy, f"{group.label}, {level_name(level['rho'])}")
            for level, accuracy in level_accuracy(group)
        ]
        for group in groups
    ]
    if any(levels):
        title = "Compact nets: accuracy against size"
        figures.append(_scatter(title, levels, "parameters of the compact net"))
    return element("div", *figures, class_="figures")


def level_accuracy(group: Group) -> list[tuple[Mapping[str, Any], Spread]]:
    """Return what each level's net costs, and its mean accuracy over seeds, smallest level first.

    Only finished runs have cut the compact nets out of the global one.
    """
    found: dict[float, list[Mapping[str, Any]]] = {}
    for run in group.counted:
        for level in run.summary["levels"] if run.summary else ():
            if level["mean_accuracy"] is not None:  # a server without pictures cannot say
                found.setdefault(level["rho"], []).append(level)
    return [
        (levels[0], spread(level["mean_accuracy"] for level in levels))
        for _, levels in sorted(found.items())
    ]


def _scatter(title: str, series: list[list[Priced]], label: str) -> Markup:
    points = [point for each in series for point in each]
    ends = [s.low for _, s, _ in points] + [s.high for _, s, _ in points]
    y = Axis(y_scale(*around(ends, floor=0, ceiling=100)), ACCURACY)
    x = Axis(x_scale(0, 1.08 * max(price for price, _, _ in points) or 1), label, short)
    drawn = [_series(Pen(index), each, x, y) for index, each in enumerate(series) if each]
    return figure(title, *across(x), *upwards(y), *drawn)


def _series(pen: Pen, points: list[Priced], x: Axis, y: Axis) -> Markup:
    places = [(x.scale(price), y.scale(mark.mean)) for price, mark, _ in points]
    line = [pen.line(places)] if len(places) > 1 else []
    whiskers = [
        pen.whisker((at, y.scale(mark.low)), (at, y.scale(mark.high)))
        for (at, _), (_, mark, _) in zip(places, points, strict=True)
    ]
    dots = [
        pen.dot(place, f"{what}: {mark.mean:.1f} %, {short(price)}")
        for place, (price, mark, what) in zip(places, points, strict=True)
    ]
    return pen.group(*line, *whiskers, *dots)
