"""Accuracy over rounds, for the mean over domains and for each domain, with a band over seeds."""

from dapperfl.lab.groups import Group, Spread
from dapperfl.lab.report.frame import Axis, across, figure, upwards, x_scale, y_scale
from dapperfl.lab.report.markup import Markup, element
from dapperfl.lab.report.pens import Pen
from dapperfl.lab.report.scales import around

ACCURACY = "accuracy [%]"
GLOBAL = "global (mean over domains)"
_DOTS = 10  # at most about so many on a line


def learning_curves(groups: list[Group], domains: tuple[str, ...]) -> Markup:
    """Draw a picture for the mean over domains and one for each domain, all on one scale."""
    panels: dict[str, list[list[Spread]]] = {GLOBAL: [group.curve() for group in groups]}
    for domain in domains:
        panels[domain] = [g.curve(domain) if domain in g.domains else [] for g in groups]
    points = [point for curves in panels.values() for curve in curves for point in curve]
    ends = [point.low for point in points] + [point.high for point in points]
    y = Axis(y_scale(*around(ends, floor=0, ceiling=100)), ACCURACY)
    last = max(len(group.curve()) for group in groups)
    x = Axis(x_scale(1, last), "round", whole=True)
    return element(
        "div", *(_panel(title, curves, x, y) for title, curves in panels.items()), class_="figures"
    )


def _panel(title: str, curves: list[list[Spread]], x: Axis, y: Axis) -> Markup:
    lines = [_curve(Pen(index), curve, x, y) for index, curve in enumerate(curves) if curve]
    return figure(title, *across(x), *upwards(y), *lines)


def _curve(pen: Pen, curve: list[Spread], x: Axis, y: Axis) -> Markup:
    places = [x.scale(number) for number in range(1, len(curve) + 1)]
    means = [(at, y.scale(point.mean)) for at, point in zip(places, curve, strict=True)]
    low = [(at, y.scale(point.low)) for at, point in zip(places, curve, strict=True)]
    high = [(at, y.scale(point.high)) for at, point in zip(places, curve, strict=True)]
    band = [pen.band(low, high)] if any(point.count > 1 for point in curve) else []
    step = -(-len(curve) // _DOTS)
    # The last round has its dot; the others stand at equal distances before it.
    dots = [
        pen.dot(means[at], f"round {at + 1}: {curve[at].mean:.1f} %")
        for at in range(len(curve) - 1, -1, -step)
    ]
    return pen.group(*band, pen.line(means), *dots)
