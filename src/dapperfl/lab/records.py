"""`rounds.jsonl`: one line for each complete round, appended, read back, cut on resume."""

import json
import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dapperfl.core.messages import ClientCost, Device
from dapperfl.errors import CheckpointError
from dapperfl.lab.folder import RunFolder, read_json, strict_json
from dapperfl.sim.simulator import RoundRecord

SCHEMA = 1


@dataclass(frozen=True)
class Absence:
    """A device that a round went on without, and why."""

    id: int
    reason: str


@dataclass(frozen=True)
class RoundLine:
    """What is remembered of a round for good; accuracies in percent."""

    round: int
    accuracy: Mapping[str, float]  # by domain
    mean: float  # over the domains, unweighted
    loss: float | None  # None where nobody took part
    seconds: float
    costs: Mapping[int, ClientCost]  # by device id
    left_out: tuple[Absence, ...]
    validation: Mapping[str, float] = field(default_factory=dict)  # by domain, if kept aside
    # By level (its rho) and channel group, what the level's first device with a cut net kept, as
    # core.masks writes it; a group that is not named was kept whole.
    kept: Mapping[float, Mapping[str, str]] = field(default_factory=dict)
    # By domain, what real devices measured of the model that the round began with.
    on_devices: Mapping[str, float] = field(default_factory=dict)
    # Where updates came in 16 bits: the largest relative error (l2 norms) of one of them.
    rounding: float | None = None

    def brief(self) -> "RoundLine":
        """Return the line without its details, for those who hold many rounds at once."""
        return replace(self, costs={}, kept={})


def line_of(record: RoundRecord) -> RoundLine:
    """Return the part of a round's record that is kept; the weights go to the checkpoint."""
    text = _encode(
        RoundLine(
            round=record.round_num,
            accuracy=record.accuracy,
            mean=record.mean_accuracy,
            loss=record.loss,
            seconds=record.seconds,
            costs=record.costs,
            left_out=tuple(Absence(each.device.id, each.reason) for each in record.left_out),
            validation=record.validation,
            kept=record.kept,
            on_devices=record.on_devices,
            rounding=record.rounding,
        )
    )
    # What is shown and summed up must be what a later reader finds in the file.
    return _decode(json.loads(text))


def domain_column(domain: str, taken: Container[str]) -> str:
    """Return the name of a domain's numbers beside others; one that is taken is marked."""
    return f"{domain} (domain)" if domain in taken else domain


def append(path: Path, line: RoundLine) -> None:
    """Add a round, on the disk before this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{_encode(line)}\n")
        file.flush()
        os.fsync(file.fileno())


def load_records(folder: Path) -> list[RoundLine]:
    """Read the complete rounds of a run, finished or not."""
    return [line for line, _ in _lines(RunFolder(Path(folder)).rounds)]


def read_devices(folder: RunFolder) -> tuple[Device, ...]:
    """Return who took part in a run.

    Raises:
        CheckpointError: The file that says so is missing or damaged.
    """
    try:
        return tuple(Device(**each) for each in read_json(folder.allocation)["devices"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{folder.allocation} is damaged: {error!r}") from error


def read_until(path: Path, round_num: int) -> list[RoundLine]:
    """Return the lines up to a round, all of which must be there; nothing is changed."""
    return [line for line, _ in _until(path, round_num)]


def keep_until(path: Path, round_num: int) -> list[RoundLine]:
    """Cut the file back to a round (and a half-written line off), and return what is left."""
    lines = _until(path, round_num)
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(lines[-1][1] if lines else 0)
            os.fsync(file.fileno())
    return [line for line, _ in lines]


def _until(path: Path, round_num: int) -> list[tuple[RoundLine, int]]:
    lines = [(line, end) for line, end in _lines(path) if line.round <= round_num]
    if len(lines) != round_num:
        raise CheckpointError(
            f"{path} holds {len(lines)} rounds, but the run is at the end of round {round_num}; "
            "bring back the missing lines, or start again with another --out"
        )
    return lines


def _lines(path: Path) -> Iterator[tuple[RoundLine, int]]:
    """Yield every complete line with the position of its end; rounds count from 1 without gap."""
    texts = path.read_bytes().split(b"\n") if path.exists() else [b""]
    end = 0
    # Behind the last line end there is nothing, or what a killed process had not finished.
    for number, text in enumerate(texts[:-1], start=1):
        end += len(text) + 1
        try:
            line = _decode(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path}, line {number} is damaged: {error!r}") from error
        if line.round != number:
            raise CheckpointError(f"{path}, line {number} is of round {line.round}")
        yield line, end


def _encode(line: RoundLine) -> str:
    return strict_json({"schema": SCHEMA, **asdict(line)})


def _decode(row: Mapping[str, Any]) -> RoundLine:
    return RoundLine(
        round=row["round"],
        accuracy=row["accuracy"],
        mean=row["mean"],
        loss=row["loss"],
        seconds=row["seconds"],
        costs={int(device): ClientCost(**cost) for device, cost in row["costs"].items()},
        left_out=tuple(Absence(**each) for each in row["left_out"]),
        validation=row.get("validation", {}),
        kept={float(rho): dict(masks) for rho, masks in row.get("kept", {}).items()},
        on_devices=row.get("on_devices", {}),
        rounding=row.get("rounding"),
    )
