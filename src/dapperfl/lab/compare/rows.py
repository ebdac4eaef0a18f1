"""One CSV row a run, and one a round: all that tables and figures are made of."""

import csv
import io
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from dapperfl.errors import CheckpointError
from dapperfl.lab.compare.planned import Planned
from dapperfl.lab.folder import write_atomically
from dapperfl.lab.records import RoundLine, domain_column
from dapperfl.lab.summary import marks

Row = Mapping[str, str]
MARKS = ("best", "last", "last5")
_HEAD = ("method", "preset", "seed", *MARKS)
_COUNTS = ("seed", "round", "rounds")
_COSTS = ("parameters", "flops", "bytes", "seconds")
_ABOUT = ("base", "label", "settings")
_NEEDED = {"base", "label", "method", "preset", "seed", "id"}
_MAYBE = (
    *(*_COSTS, "bytes_up", "bytes_down", "peak_parameters"),
    *("weakest_parameters", "weakest_macs", "weakest_accuracy", "own_accuracy", "own_calibrated"),
    *("validation", "left_out", "client_rounds"),
)
_MADE_BY = ("dapperfl", "torch", "python", "platform", "threads", "commit")


def row_of(run: Planned, summary: Mapping[str, Any], lines: Sequence[RoundLine]) -> Row:
    """Return a finished run's row; accuracies in percent, costs per client and round.

    `parameters` are those of the net that was sent back; `bytes` go both ways; `weakest_*` speak of
    the compact net that the weakest level takes home; `own_accuracy` is that of the net which a
    device takes home, on its own domain, mean over devices; `own_calibrated` the same after the
    device has calibrated it with its pictures; `left_out` are `client_rounds` without an update.
    """
    config = run.config
    row: dict[str, Any] = {
        "method": config.method.name,
        "preset": config.method.preset,
        "seed": config.seed,
        **_accuracies("", [line.mean for line in lines]),
    }
    for domain in lines[-1].accuracy:
        row |= _accuracies(f"{domain}_", [line.accuracy[domain] for line in lines])
    row |= _costs(lines) | {"seconds": f"{sum(line.seconds for line in lines):.1f}"}
    weakest = summary["levels"][-1]
    row |= {f"weakest_{name}": weakest[name] for name in ("parameters", "macs")}
    row["weakest_accuracy"] = f"{weakest['mean_accuracy']:.4f}"
    if summary.get("at_home") is not None:
        row["own_accuracy"] = f"{summary['at_home']:.4f}"
    if summary.get("at_home_calibrated") is not None:
        row["own_calibrated"] = f"{summary['at_home_calibrated']:.4f}"
    if lines[-1].validation:
        aside = marks([fmean(line.validation.values()) for line in lines])["last5"]
        row["validation"] = f"{aside:.4f}"
    elif config.data.blind:
        row |= {"validation": row["last5"], "blind": True}
    row |= _attendance(lines) | {name: getattr(run, name) for name in _ABOUT}
    row |= {
        "benchmark": config.data.benchmark,
        "protocol": config.data.protocol,
        "net": config.net.name,
        "width": config.net.width,
        "rounds": config.rounds,
        "precision": config.engine.precision,
    }
    row |= {name: summary["versions"].get(name, "") for name in _MADE_BY}
    row |= {"machine": machine(), "id": run.id}
    return {name: str(value) for name, value in row.items()}


def _accuracies(prefix: str, accuracies: Sequence[float]) -> dict[str, str]:
    return {f"{prefix}{mark}": f"{value:.4f}" for mark, value in marks(accuracies).items()}


def _attendance(lines: Sequence[RoundLine]) -> dict[str, int]:
    """Count how often a device was asked for a round's work, and how often left out of it."""
    asked = (line.costs.keys() | {absence.id for absence in line.left_out} for line in lines)
    return {
        "left_out": sum(len(line.left_out) for line in lines),
        "client_rounds": sum(map(len, asked)),
    }


def _costs(lines: Sequence[RoundLine]) -> dict[str, int]:
    spent = [cost for line in lines for cost in line.costs.values()]

    def mean(field: str) -> int:
        return round(fmean([getattr(cost, field) for cost in spent] or [0]))

    up, down = mean("bytes_up"), mean("bytes_down")
    return {
        "parameters": mean("parameters_uploaded"),
        "flops": mean("train_flops"),
        "bytes": up + down,
        "bytes_up": up,
        "bytes_down": down,
        "peak_parameters": max((cost.peak_parameters for cost in spent), default=0),
    }


def machine() -> str:
    """Describe where runs are computed."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores"


def round_rows(run: Planned, lines: Iterable[RoundLine]) -> list[Row]:
    """Return a row for each round: what learning curves are drawn from.

    A run's settings are in its own row, once.
    """
    about = {"base": run.base, "label": run.label}
    about |= {"method": run.config.method.name, "preset": run.config.method.preset}
    about |= {"id": run.id, "seed": str(run.config.seed)}
    rows: list[Row] = []
    for line in lines:
        row = {**about, "round": str(line.round), "global": f"{line.mean:.4f}"}
        own = {domain_column(name, row): f"{value:.4f}" for name, value in line.accuracy.items()}
        rows.append(row | own)
    return rows


def relabelled(row: Row, run: Planned) -> Row:
    """Return a row that another table made, as a row of this one."""
    return {**row, **{name: getattr(run, name) for name in _ABOUT if name in row}}


def domains_of(row: Row) -> list[str]:
    """Return the domains that a run was tested on: those with a number in any of their columns."""
    parts = [name.rpartition("_") for name, cell in row.items() if cell != ""]
    return list(dict.fromkeys(domain for domain, _, mark in parts if domain and mark in MARKS))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows in their order; runs without a column leave it empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, file.getvalue().encode())


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return all columns in one order, the domains of every run before its costs."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    domains = [name for name in names if name.rpartition("_")[2] in MARKS and name not in MARKS]
    first = [name for name in (*_HEAD, *domains, *_COSTS) if name in names]
    return [*first, *(name for name in names if name not in first)]


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file.

    Raises:
        CheckpointError: there is no such file, or it is not one of these.
    """
    try:
        # A spreadsheet begins what it saves with a mark of the encoding.
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows: list[Row] = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    for number, row in enumerate(rows, start=1):
        cells = (*row, *row.values())  # csv says None for a cell too many or too few
        needed = _NEEDED if "round" in row else {*_NEEDED, *_ABOUT}
        if not needed <= row.keys() or None in cells:
            raise CheckpointError(f"{path}, row {number} is damaged, or of another kind of file")
        for column in _numbers(row):
            try:
                _parsed(row, column)
            except ValueError as error:
                raise CheckpointError(
                    f"{path}, row {number} is damaged: {column} is no number: {error}"
                ) from error
    return rows


def number(row: Row, column: str) -> float:
    """Return the number in a cell.

    Raises:
        CheckpointError: there is none.
    """
    if not row.get(column):
        raise CheckpointError(
            f"{row['base']}: {row['label']}, seed {row['seed']} has no {column}; its row is "
            "damaged, or of another version"
        )
    return float(row[column])


def _parsed(row: Row, column: str) -> float:
    value = (int if column in _COUNTS else float)(row[column])
    if not isfinite(value):
        raise ValueError(f"{value} is none of a run")
    return value


def _numbers(row: Row) -> Iterator[str]:
    """Name the cells that hold numbers: some must, others do where they are not empty."""
    words = {*_ABOUT, "method", "preset", "id"}
    for name, cell in row.items():
        must = name in (*_COUNTS, *MARKS)
        cost = name in _MAYBE
        domain = name.rpartition("_")[2] in MARKS or ("round" in row and name not in words)
        if must or (cell and (cost or domain)):
            yield name
