"""The paper's numbers, read from `paper.toml`, and how far ours are from them."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dapperfl.lab.groups import Spread

Part = Literal["accuracy", "footprint", "ablation"]
NOTEWORTHY = 3.0  # points; closer than this we say nothing


@dataclass(frozen=True)
class Printed:
    """A number of the paper."""

    mean: float
    std: float | None = None


Cells = Mapping[str, Printed]  # by column; "global" is the mean over domains


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, and where it is."""

    place: str
    rows: Mapping[str, Cells]


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))


@cache
def paper_table(part: Part, base: str) -> PaperTable:
    """Return what the paper prints of a benchmark."""
    found = _document()[part][base]
    rows = {
        name: dict(zip(found["columns"], map(_printed, cells), strict=True))
        for name, cells in found["rows"].items()
    }
    return PaperTable(found["place"], rows)


def best_value(field: str) -> tuple[float, str]:
    """Return the value of a hyper-parameter that the paper finds best, and where it says so."""
    found = _document()["best"][field]
    return found["value"], found["place"]


def claim(name: str) -> str:
    """Return what the paper says where it prints no numbers."""
    text: str = _document()["claims"][name]
    return text


def _printed(text: str) -> Printed:
    mean, std = re.fullmatch(r"([\d.]+)(?:\(([\d.]+)\))?", text).groups()  # type: ignore[union-attr]
    return Printed(float(mean), float(std) if std else None)


def gap(ours: Spread, printed: Printed) -> float:
    """Return how many points we are above the paper."""
    return ours.mean - printed.mean
