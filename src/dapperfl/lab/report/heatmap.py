"""Which channels each level kept over the rounds, as `rounds.jsonl` remembers them.

Of every level and round, that is the net of the level's first device that trained a cut one.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from dapperfl.core.masks import Mask, unpack
from dapperfl.lab.gather import Run
from dapperfl.lab.groups import Group
from dapperfl.lab.report.frame import LEFT, RIGHT, WIDTH, figure, level_name, words
from dapperfl.lab.report.markup import Markup, element, join
from dapperfl.lab.report.png import Pixel, data_uri, png
from dapperfl.lab.report.tables import table

_LAYERS = 4  # the largest that are drawn
_ROWS = 128  # more channels than these share a row
_HIGH = 120
_TOP, _GAP = 22, 8
_KEPT = (0, 114, 178)  # blue; removed channels are the same, faint, on light and dark paper
_FAINT = 28  # opacity of 255


def kept_channels(group: Group) -> Markup | None:
    """Draw the kept channels of a group's first run; None if it never cut a net."""
    run = next((run for run in group.counted if any(line.kept for line in run.lines)), None)
    if run is None:
        return None
    levels = sorted({rho for line in run.lines for rho in line.kept})
    sizes = _layers(run)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_LAYERS]
    shown = [name for name in sizes if name in largest]
    pictures = [_figure(run, name, sizes[name], levels) for name in shown]
    title = f"{group.label}, seed {run.seed}"
    if len(shown) < len(sizes):
        title += f" ({len(shown)} largest of {len(sizes)} layers that lose channels)"
    return join(
        element("h4", title),
        element("div", *pictures, class_="figures"),
        _stability(run, sizes, levels, group.label),
    )


def _layers(run: Run) -> dict[str, int]:
    """Return the layers that ever lost channels, with their sizes, in the order of the net."""
    found: dict[str, int] = {}
    for line in run.lines:
        for masks in line.kept.values():
            for name, mask in masks.items():
                if name not in found:
                    found[name] = unpack(mask).size
    return dict(sorted(found.items()))


def history(run: Run, name: str, size: int, rho: float) -> list[Mask | None]:
    """Return what a level kept of a layer, round by round; None: nobody trained a cut net."""
    masks: list[Mask | None] = []
    for line in run.lines:
        kept = line.kept.get(rho)
        whole = None if kept is None else Mask.whole(size)
        masks.append(unpack(kept[name]) if kept and name in kept else whole)
    return masks


def pixels(masks: Sequence[Mask | None], size: int) -> list[list[Pixel]]:
    """Return rows of channels and columns of rounds; the more of a row is kept, the stronger."""
    rows = min(size, _ROWS)
    edges = [at * size // rows for at in range(rows + 1)]
    return [[_pixel(mask, low, high) for mask in masks] for low, high in pairwise(edges)]


def _pixel(mask: Mask | None, low: int, high: int) -> Pixel:
    if mask is None:
        return (0, 0, 0, 0)
    share = mask.count(low, high) / (high - low)
    return (*_KEPT, round(_FAINT + share * (255 - _FAINT)))


def _figure(run: Run, name: str, size: int, levels: list[float]) -> Markup:
    across = (WIDTH - LEFT - RIGHT - _GAP * (len(levels) - 1)) / len(levels)
    floor = _TOP + _HIGH
    parts = [
        words("0", LEFT - 5, _TOP + 9, anchor="end", kind="tick"),
        words(f"{size - 1}", LEFT - 5, floor, anchor="end", kind="tick"),
        words("channel", 12, _TOP + _HIGH / 2, anchor="middle", turned=True),
        words("round", (LEFT + WIDTH - RIGHT) / 2, floor + 28, anchor="middle"),
    ]
    for at, rho in enumerate(levels):
        x = LEFT + at * (across + _GAP)
        picture = png(pixels(history(run, name, size, rho), size))
        box = {"x": f"{x:g}", "y": _TOP, "width": f"{across:g}", "height": _HIGH}
        parts += [
            element("image", href=data_uri(picture), preserveAspectRatio="none", **box),
            element("rect", class_="box", **box),
            words(level_name(rho), x + across / 2, _TOP - 7, anchor="middle"),
            words("1", x, floor + 14, kind="tick"),
            words(f"{len(run.lines)}", x + across, floor + 14, anchor="end", kind="tick"),
        ]
    return figure(f"{name} ({size} channels)", *parts, height=floor + 34)


def _stability(run: Run, sizes: dict[str, int], levels: list[float], label: str) -> Markup:
    """Return in numbers how much each level keeps, and how often it changes its mind."""
    rows = []
    for rho in levels:
        found = [history(run, name, size, rho) for name, size in sizes.items()]
        rounds = zip(*found, strict=True)
        nets = [[mask for mask in masks if mask] for masks in rounds if masks[0] is not None]
        share = fmean(sum(mask.count() for mask in net) for net in nets) / sum(sizes.values())
        stay = [_overlap(before, net) for before, net in pairwise(nets)]
        stays = f"{100 * fmean(stay):.1f} %" if stay else "–"
        rows.append([level_name(rho), f"{100 * share:.1f} %", stays])
    caption = f"Channels of the layers that lose some: {label}, seed {run.seed}"
    head = ["level", "kept", "of those, kept the round before"]
    return table(caption, head, rows)


def _overlap(before: list[Mask], net: list[Mask]) -> float:
    """Return the share of a net's channels that were kept a round earlier as well."""
    both = sum((old & new).count() for old, new in zip(before, net, strict=True))
    return both / sum(mask.count() for mask in net)
