"""Where each group ends, domain by domain."""

from dapperfl.lab.groups import Group
from dapperfl.lab.report.curves import ACCURACY, GLOBAL
from dapperfl.lab.report.frame import BOTTOM, TOP, Axis, across, figure, words, x_scale
from dapperfl.lab.report.markup import Markup
from dapperfl.lab.report.pens import Pen
from dapperfl.lab.report.scales import around

_ROW = 15  # a group's row
_NAME = 20  # the line with the domain's name
_VALUES = 50  # the column of numbers at the right


def final_accuracy(groups: list[Group], domains: tuple[str, ...]) -> Markup:
    """Draw a point for each group and domain, with the range over seeds as a whisker."""
    titles: dict[str | None, str] = {None: GLOBAL} | {domain: domain for domain in domains}
    marks = [
        (index, title, group.mark("last5", domain))
        for domain, title in titles.items()
        for index, group in enumerate(groups)
        if domain is None or domain in group.domains
    ]
    ends = [mark.low for _, _, mark in marks] + [mark.high for _, _, mark in marks]
    height = TOP + len(titles) * _NAME + len(marks) * _ROW + BOTTOM
    axis = Axis(x_scale(*around(ends, floor=0, ceiling=100), right=_VALUES), ACCURACY)
    parts, y, before = across(axis, height), float(TOP), ""
    for index, title, mark in marks:
        if title != before:
            y += _NAME
            parts.append(words(title, axis.scale.start, y - 6))
            before = title
        pen, middle = Pen(index), y + _ROW / 2
        value = words(f"{mark.mean:.1f}", axis.scale.end + _VALUES - 4, middle + 4, anchor="end")
        line = pen.whisker((axis.scale(mark.low), middle), (axis.scale(mark.high), middle))
        tip = f"{groups[index].label}, {title}: {mark.mean:.2f} %"
        parts.append(pen.group(line, pen.dot((axis.scale(mark.mean), middle), tip), value))
        y += _ROW
    return figure("Mean of the last five rounds", *parts, height=height)
