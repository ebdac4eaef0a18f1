"""Finished and unfinished runs, read back from the folders that somebody points at.

A folder is read by its own files alone: neither the data nor somebody's own method has to be on
the machine that looks at the results.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dapperfl.core.messages import Device
from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.lab.config import Config, flat, to_keys
from dapperfl.lab.folder import RunFolder, read_json
from dapperfl.lab.records import RoundLine, load_records, read_devices
from dapperfl.lab.resolve import META, read_toml


@dataclass(frozen=True)
class Run:
    """What a run folder says, without its weights."""

    path: Path
    settings: Mapping[str, Any]  # every value by its dotted key
    versions: Mapping[str, Any]  # what it was started under
    devices: tuple[Device, ...]
    lines: tuple[RoundLine, ...]  # the complete rounds
    summary: Mapping[str, Any] | None  # None: not finished

    @property
    def seed(self) -> int:
        """The seed that decided its random draws."""
        return int(self.settings["seed"])

    @property
    def rounds(self) -> int:
        """How many rounds it was asked for."""
        return int(self.settings["rounds"])

    @property
    def method(self) -> str:
        """Its method and preset, as `--methods` writes them."""
        return f"{self.settings['method.name']}:{self.settings['method.preset']}"

    @property
    def benchmark(self) -> str:
        """The pictures it learnt from."""
        return str(self.settings["data.benchmark"])


def load_runs(paths: Iterable[Path]) -> list[Run]:
    """Read every run in or below the given folders, each once, in the order given.

    Raises:
        CheckpointError: a folder is missing, holds no run, or has a damaged one.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        folders = list(_run_folders(path))
        if not folders:
            why = "holds no run" if path.is_dir() else "is no folder"
            raise CheckpointError(
                f"{path} {why}; name a run folder (with config.toml and rounds.jsonl), or a "
                "folder that has some below it"
            )
        for folder in folders:
            found.setdefault(folder.resolve(), folder)
    return [load_run_folder(folder) for folder in found.values()]


def _run_folders(path: Path) -> Iterator[Path]:
    for place, below, files in os.walk(path):
        # Both are written before the first round, so a run that has just begun is found too.
        if {"config.toml", "allocation.json"} <= set(files):
            below.clear()
            yield Path(place)
        below.sort()


def load_run_folder(path: Path) -> Run:
    """Read one run folder.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    folder = RunFolder(path)
    try:
        table = read_toml(folder.config)
    except ConfigError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    versions = table.pop(META, {})
    settings = _completed(flat(table))
    if not {"method.name", "method.preset"} <= settings.keys():
        raise CheckpointError(f"{folder.config} does not name a method and its preset")
    devices = read_devices(folder)
    summary = _summary(folder.summary) if folder.summary.exists() else None
    lines = tuple(load_records(path))
    if summary is not None and not lines:
        raise CheckpointError(
            f"{folder.rounds} holds no round, though the run is finished; bring it back, or leave "
            f"{path} out"
        )
    return Run(path, settings, versions, devices, lines, summary)


def _summary(path: Path) -> Mapping[str, Any]:
    summary = read_json(path)
    if not isinstance(summary, dict) or not {"levels", "dense"} <= summary.keys():
        raise CheckpointError(f"{path} is damaged: it has no levels")
    return summary


def _completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Give a run of an older version the defaults of the keys that have come since."""
    missing = {key: value for key, value in _defaults().items() if key not in stored}
    return {**stored, **missing}


@cache
def _defaults() -> Mapping[str, Any]:
    keys = to_keys(Config())
    return {key: value for key, value in keys.items() if not key.startswith("method.")}
