"""Run folders written by hand: what a run would leave, without training anything."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from dapperfl.core.messages import ClientCost, Device
from dapperfl.lab.config import to_table
from dapperfl.lab.folder import RunFolder, write_atomically, write_json
from dapperfl.lab.records import RoundLine, append
from dapperfl.lab.resolve import META, resolve

DEVICES = (Device(0, "dark", 0.0, 30), Device(1, "light", 0.5, 40), Device(2, "light", 0.8, 50))
VERSIONS = {"dapperfl": "0.1.0", "torch": "2.13.0", "threads": 1}
Kept = Mapping[float, Mapping[str, str]]


def write_run(
    path: Path,
    *settings: str,
    dark: Sequence[float] = (10.0, 20.0),
    light: Sequence[float] = (30.0, 60.0),
    finished: bool = True,
    kept: Sequence[Kept] = (),
    devices: Sequence[Device] = DEVICES,
) -> Path:
    """Write a run folder whose rounds had these accuracies; it is asked for as many rounds.

    Every client of every round sends 100 bytes with the number of its device added.
    """
    rounds = f"rounds={len(dark) if finished else len(dark) + 5}"
    config = resolve(None, [rounds, *settings])
    folder = RunFolder(path)
    document = {**to_table(config), META: VERSIONS}
    write_atomically(folder.config, tomli_w.dumps(document).encode())
    write_json(folder.allocation, {"devices": [asdict(each) for each in devices]})
    for number, accuracy in enumerate(zip(dark, light, strict=True), start=1):
        line = RoundLine(
            round=number,
            accuracy=dict(zip(("dark", "light"), accuracy, strict=True)),
            mean=sum(accuracy) / 2,
            loss=0.5,
            seconds=2.0,
            costs={d.id: ClientCost(9, 8, 10, 1000, 100 + d.id, 200) for d in devices},
            left_out=(),
            kept=kept[number - 1] if kept else {},
        )
        append(folder.rounds, line)
    if finished:
        write_json(folder.summary, {"dense": {"parameters": 1000}, "levels": _levels(dark[-1])})
    return path


def _levels(accuracy: float) -> list[dict[str, Any]]:
    price = {"macs": 5, "train_flops": 6, "upload_bytes": 7}
    return [
        {"rho": rho, "parameters": size, **price, "mean_accuracy": accuracy - 10 * rho}
        for rho, size in ((0.0, 1000), (0.5, 500), (0.8, 200))
    ]
