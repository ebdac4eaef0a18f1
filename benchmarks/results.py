"""What comes out of a bench: a table on the terminal, a JSON file and a plot."""

import json
import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Row
from dapperfl.lab.versions import versions

# Okabe and Ito's colours, which the colour-blind can tell apart.
MET, MISSED = "#0072B2", "#D55E00"


def machine_name() -> str:
    """Name the kind of machine, without saying whose it is."""
    parts = [platform.machine(), f"{cores()}-cores"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return re.sub(r"[^\w-]+", "-", "-".join(parts)).lower()


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def facts(command: str) -> dict[str, Any]:
    """Return what the rows depend on."""
    found = {name: value for name, value in versions().items() if name != "platform"}
    gpu = {}
    if torch.cuda.is_available():
        gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine_name(),
        "cores": cores(),
        **found,
        **gpu,
    }


def write(path: Path, about: dict[str, Any], rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Write everything down; called after every part, so that a late failure costs little."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**about, "rows": [row.to_table() for row in rows], "notes": list(notes)}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def line(row: Row, width: int) -> str:
    """Return a row as a line of the table."""
    verdict = {None: "", True: "met", False: "MISSED"}[row.met]
    target = "" if row.goal is None else _target(row)
    return (
        f"{row.name:{width}}  {row.value:10.4g} {row.unit:5}  {row.baseline:10.4g}  "
        f"{row.ratio:8.3f}  {target:>9}  {verdict}"
    )


def _target(row: Row) -> str:
    unit = f" {row.unit}" if row.goal and row.goal.of == "value" else ""
    return f"{row.goal}{unit}"


def table(rows: Sequence[Row]) -> str:
    """Return all rows as a table of plain text."""
    width = max((len(row.name) for row in rows), default=4)
    head = f"{'what':{width}}  {'value':>10} {'unit':5}  {'baseline':>10}  {'ratio':>8}"
    head += f"  {'target':>9}"
    return "\n".join([head, "-" * len(head), *(line(row, width) for row in rows)])


def plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw how far each row with a target is from it: to the right of the line it is met."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shown = [row for row in reversed(rows) if row.margin is not None]
    margins = [row.margin or 0.0 for row in shown]
    figure = Figure(figsize=(13, 1.2 + 0.27 * len(shown)), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    bars = axes.barh(
        [row.name for row in shown],
        [margin - 1 for margin in margins],
        left=1,
        color=[MET if row.met else MISSED for row in shown],
        hatch=["" if row.met else "///" for row in shown],
        edgecolor="white",
    )
    for bar, row, margin in zip(bars, shown, margins, strict=True):
        text = f"{row.judged:.3g} ({_target(row)})"
        middle = bar.get_y() + bar.get_height() / 2
        axes.text(1.02 * max(margin, 1), middle, text, va="center", fontsize=8)
    low, high = min([0.5, *margins]) / 1.1, max([2.0, *margins]) * 2
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in (0.1, 0.25, 0.5, 1, 2, 4, 10, 20, 50, 100) if low <= tick <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.axvline(1, color="black", linewidth=1)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("times better than its target; striped bars to the left of the line miss it")
    axes.set_title(title, loc="left", fontsize=10)
    figure.savefig(path)
