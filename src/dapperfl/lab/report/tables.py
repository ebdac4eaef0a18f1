"""Tables of numbers: plain HTML that can be read, printed and copied without a script."""

from collections.abc import Iterable, Sequence
from typing import Any

from dapperfl.lab.display import clock, human
from dapperfl.lab.groups import MARKS, Group, Mark, Spread
from dapperfl.lab.report.frame import level_name
from dapperfl.lab.report.markup import Markup, element, join, text
from dapperfl.lab.report.prices import level_accuracy


def table(caption: str, head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markup:
    """Return a table whose first column names the rows; it scrolls by itself when it is wide."""
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", c) for c in row[1:]))
        for row in rows
    ]
    rows_and_head = [element("thead", top), element("tbody", *body)]
    # A caption of the table's own would be cut off with it on a narrow screen.
    return element(
        "div",
        element("p", caption, class_="caption"),
        element("div", element("table", *rows_and_head, aria_label=caption), class_="scroll"),
        class_="table",
    )


def mean_std(value: Spread) -> str:
    """Write a number over seeds; a single seed has no deviation."""
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ({value.std:.2f})"


def accuracy_table(groups: list[Group], domains: tuple[str, ...], mark: Mark) -> Markup:
    """Return mean (std) by domain and global; the best is bold, the second underlined."""
    columns = [
        [group.mark(mark, domain) if domain in group.domains else None for group in groups]
        for domain in domains
    ]
    columns.append([group.mark(mark) for group in groups])
    cells = [_ranked(column) for column in columns]
    head = ["", *domains, "global"]
    rows = [[group.label, *(column[at] for column in cells)] for at, group in enumerate(groups)]
    title = MARKS[mark].capitalize()
    return table(f"{title}: accuracy [%]", head, rows)


def _ranked(column: list[Spread | None]) -> list[Markup]:
    """Write a column, with the best bold and the second underlined where there are rivals."""
    means = sorted({round(value.mean, 2) for value in column if value}, reverse=True)
    cells = []
    for value in column:
        cell = text(mean_std(value)) if value else text("–")
        place = means.index(round(value.mean, 2)) if value and len(means) > 1 else None
        if place in (0, 1):
            cell = element("strong" if place == 0 else "u", cell)
        cells.append(cell)
    return cells


def cost_table(groups: list[Group]) -> Markup:
    """Return what one client spends in one round, and a run as a whole."""
    head = ["", "parameters sent", "most parameters held", "training FLOPs", "bytes up",
            "bytes down", "run: bytes up", "run: time"]  # fmt: skip
    rows = []
    for group in groups:
        ups = [c.bytes_up for r in group.counted for ln in r.lines for c in ln.costs.values()]
        seconds = [line.seconds for run in group.counted for line in run.lines]
        runs = len(group.counted)
        rows.append(
            [
                group.label,
                _count(group.cost("parameters_uploaded").mean),
                _count(group.most_held.mean),
                _count(group.cost("train_flops").mean),
                f"{human(group.cost('bytes_up').mean)}B",
                f"{human(group.cost('bytes_down').mean)}B",
                f"{human(sum(ups) / runs)}B",
                clock(sum(seconds) / runs),
            ]
        )
    title = (
        "Cost: mean of a client in a round (most held: of the largest net that any client held), "
        "and of a run (clients together)"
    )
    return table(title, head, rows)


def level_table(groups: list[Group]) -> Markup:
    """Return the size and the accuracy of each level's compact net."""
    rows = []
    for group in groups:
        for level, accuracy in level_accuracy(group):
            dense = next(run.summary for run in group.counted if run.summary)["dense"]
            share = 100 * level["parameters"] / dense["parameters"]
            sizes = [_count(level[name]) for name in ("parameters", "macs", "train_flops")]
            sizes.insert(1, f"{share:.1f} %")
            upload = f"{human(level['upload_bytes'])}B"
            name = f"{group.label}, {level_name(level['rho'])}"
            rows.append([name, *sizes, upload, mean_std(accuracy)])
    head = ["", "parameters", "of the full net", "MACs", "training FLOPs", "upload",
            "accuracy [%]"]  # fmt: skip
    return table("Compact nets of the levels: cost an image, accuracy mean (std)", head, rows)


def _count(number: float) -> str:
    return human(number).strip()


def folded(title: str, *content: Any) -> Markup:
    """Return something that is opened by a click, and always open on paper."""
    return element("details", element("summary", title), join(*content))
