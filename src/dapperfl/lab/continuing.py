"""Whether a run folder may be written to, and whether the run in it may go on as it is asked to.

A run that goes on must be the run that was started: settings, pictures and order decide what it
computes and may not change. What may change is how long and how fast it runs, and where.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dapperfl.data.benchmark import Federation
from dapperfl.data.benchmarks import naming_keys
from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.lab.build import files_mark
from dapperfl.lab.config import Config, DataConfig, to_keys
from dapperfl.lab.fields import is_among, show
from dapperfl.lab.folder import RunFolder, read_table
from dapperfl.lab.own_code import changed_code, named
from dapperfl.lab.pictures import mark_of
from dapperfl.lab.records import load_records
from dapperfl.lab.resolve import META, read_toml, resolve_stored
from dapperfl.lab.versions import versions

_log = logging.getLogger(__name__)

# What may differ when a run is continued; everything else would make it another run.
_MAY_CHANGE = (
    "rounds",
    "checkpoint_every",
    "data.root",
    "engine.name",
    "engine.workers",
    "engine.device",
    "engine.memory_limit_mb",
    "deploy.deadline",
    "deploy.min_replies",
    "deploy.devices",
    "deploy.patience",
)

FILES = "files"  # where `allocation.json` has the mark of the pictures' files
_NAMED = 3  # runs that a warning names, of as many as there may be
# What else may have changed since a run was started, and what that does to it.
_EFFECTS = {
    "dapperfl": "its settings may mean something else now",
    "commit": "its settings may mean something else now",
    "torch": "last bits may differ",
    "platform": "last bits may differ",
    "threads": "last bits may differ",
}


def finished_summary(config: Config, out: Path) -> dict[str, Any] | None:
    """Return the results that a folder holds of this very run, or None where some are missing."""
    folder = RunFolder(out)
    if not folder.config.exists() or not folder.summary.exists():
        return None
    stored = stored_config(folder)
    check_same_run(stored, config)
    if naming_keys(config.data.benchmark) and stored.data.root != config.data.root:
        return None  # moved, or other pictures: this shows when they are loaded
    summary = _read_summary(folder)
    return summary if summary.get("rounds") == config.rounds else None


def tell_changed(config: Config, out: Path) -> None:
    """Warn if a run's pictures or code of one's own have changed since it was started."""
    tell_changed_pictures(config, out)
    if files := code_changed_since(config, out):
        _log.warning(
            "%s since %s was started: what it has so far is of the code before; choose another "
            "--out to train with this code alone",
            *(named(files), out),
        )


def tell_changed_pictures(
    config: Config, out: Path, look: Callable[[DataConfig], str | None] = files_mark
) -> None:
    """Warn if a run's files of pictures are not what they were when it was started.

    Args:
        config: What is to be run.
        out: The run folder.
        look: Names the files as they are now; who asks for many runs looks once.
    """
    then = stored_files(RunFolder(out))
    if then is not None and look(config.data) not in (None, then):
        _log.warning(
            "pictures in %s have come, gone or changed since %s was started: what it has so far is "
            "of those before; choose another --out to train on these alone",
            *(config.data.root, out),
        )


def code_changed_since(config: Config, out: Path) -> list[Path]:
    """Return the files of one's own code that are not what they were when a run was started."""
    return changed_code(config, read_toml(RunFolder(out).config).get(META, {}))


def tell_older_code(found: Mapping[Path, Sequence[str]]) -> None:
    """Warn once for each file of one's own that has changed since the runs named with it."""
    for file, runs in found.items():
        more = "; …" if len(runs) > _NAMED else ""
        _log.warning(
            "%s since the start of finished runs, %d of them (%s%s): they are taken as they are, "
            "of the code before; choose another --out to train all anew",
            *(named([file]), len(runs), "; ".join(runs[:_NAMED]), more),
        )


def stored_files(folder: RunFolder) -> str | None:
    """Return the mark of the files that a run was started with, if it is known."""
    if not folder.allocation.exists():
        return None
    with suppress(CheckpointError):  # who needs more of it says what is wrong
        return read_table(folder.allocation, "").get(FILES)
    return None


def _read_summary(folder: RunFolder) -> dict[str, Any]:
    return read_table(folder.summary, "remove it, and --resume makes it again")


def may_write(folder: RunFolder, resume: bool) -> bool:
    """Refuse to overwrite; return whether there is a run to continue."""
    if not folder.is_used():
        return False
    if not resume:
        raise CheckpointError(
            f"{folder.path} is not empty; continue that run with --resume, or choose another --out"
        )
    if not folder.config.exists():
        raise CheckpointError(
            f"{folder.path} has files but no config.toml, so it is no run folder; "
            "choose another --out"
        )
    return True


def stored_config(folder: RunFolder) -> Config:
    """Read the config a run was started with."""
    try:
        return resolve_stored(folder.config)
    except ConfigError as error:
        raise CheckpointError(f"{folder.config} cannot be used: {error}") from error


def check_same_run(stored: Config, asked: Config) -> None:
    """Refuse to continue a run with settings that would have changed its past."""
    old, new = to_keys(stored), to_keys(asked)
    for key in old | new:
        if old.get(key) != new.get(key) and not is_among(key, _MAY_CHANGE):
            raise ConfigError(
                f"{key} = {show(new.get(key))}, but the run was started with {show(old.get(key))}; "
                "--resume may change how long and how fast a run is, not what it computes; "
                "choose another --out for another run"
            )
    for before, after in zip(old, new, strict=True):
        if before != after:  # devices follow the order of data.allocation
            raise ConfigError(
                f"{after} stands where the run was started with {before}; keep the order, or "
                "choose another --out for another run"
            )


def check_continuation(folder: RunFolder, config: Config, world: Federation) -> None:
    """Refuse to go on with other settings or pictures, and tell what else has changed.

    Raises:
        CheckpointError: what the folder says of its run cannot be read.
        ConfigError: it would be another run.
    """
    check_same_run(stored_config(folder), config)
    _check_pictures(folder, world)
    tell_changed(config, folder.path)
    _compare_versions(folder)


def _check_pictures(folder: RunFolder, world: Federation) -> None:
    """Refuse to go on with pictures that have come, gone or moved since: test might be train."""
    if not folder.allocation.exists():
        return
    remedy = "remove it if the pictures are still those of the run, and --resume goes on"
    then = read_table(folder.allocation, remedy).get("pictures")
    if then not in (None, mark_of(world)):
        raise ConfigError(
            f"the pictures are not those that {folder.path} was started with, or are spread in "
            "another way; bring them back, or choose another --out for another run"
        )


def _compare_versions(folder: RunFolder) -> None:
    then, now = read_toml(folder.config).get(META, {}), versions()
    for name, effect in _EFFECTS.items():
        if name in then and name in now and then[name] != now[name]:
            _log.warning(
                "this run was started with %s %s and goes on with %s: %s",
                *(name, then[name], now[name], effect),
            )


def finished_rounds(folder: RunFolder) -> int:
    """Return how many rounds the results in a folder are of; 0 where there are none."""
    rounds = _read_summary(folder).get("rounds") if folder.summary.exists() else 0
    return rounds if isinstance(rounds, int) else 0


def check_none_is_lost(folder: RunFolder) -> None:
    """Refuse to begin anew, and to cut off all rounds, where a checkpoint must have been."""
    if not folder.config.exists():
        return
    rounds, every = len(load_records(folder.path)), stored_config(folder).checkpoint_every
    if rounds > every:
        raise CheckpointError(
            f"{folder.path} has {rounds} rounds, but their checkpoint is missing from "
            f"{folder.checkpoint}; bring it back, or start again with another --out"
        )
