"""One run from its config to its folder, such that it can be killed at any moment.

A round counts once its line is in `rounds.jsonl` and a checkpoint is complete, in this order;
lines after the last checkpoint are cut off on resume and their rounds are computed again.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from dapperfl.core.cost import cost
from dapperfl.core.messages import ClientCost
from dapperfl.data.benchmark import Federation
from dapperfl.data.benchmarks import naming_keys
from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.lab.build import build, files_mark
from dapperfl.lab.config import Config, DataConfig, to_keys, to_table
from dapperfl.lab.fields import is_among, show
from dapperfl.lab.folder import (
    RunFolder,
    explained,
    read_table,
    write_atomically,
    write_json,
    write_tensors,
)
from dapperfl.lab.pictures import mark_of
from dapperfl.lab.records import (
    RoundLine,
    append,
    keep_until,
    line_of,
    load_records,
    read_until,
)
from dapperfl.lab.resolve import META, read_toml, resolve
from dapperfl.lab.summary import summarise, total_costs
from dapperfl.lab.versions import versions
from dapperfl.runtime.checkpoint import (
    Snapshot,
    load_checkpoint,
    open_memory,
    save_checkpoint,
)
from dapperfl.sim.simulator import RoundRecord, Simulator

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

_FILES = "files"  # where `allocation.json` has the mark of the pictures' files
# What else may have changed since a run was started, and what that does to it.
_EFFECTS = {
    "dapperfl": "its settings may mean something else now",
    "commit": "its settings may mean something else now",
    "torch": "last bits may differ",
    "platform": "last bits may differ",
    "threads": "last bits may differ",
}


def run(config: Config, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Run a config to its end in one call and return its summary."""
    done = finished_summary(config, out) if resume else None
    if done is not None:
        tell_changed(config, out)
        return done
    with opened(config, out, resume=resume) as experiment:
        for _ in experiment.rounds():
            pass
        return experiment.finish()


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


def tell_changed(
    config: Config, out: Path, look: Callable[[DataConfig], str | None] = files_mark
) -> None:
    """Warn if a run's files of pictures are not what they were when it was started.

    Args:
        config: What is to be run.
        out: The run folder.
        look: Names the files as they are now; who asks for many runs looks once.
    """
    then = _stored_files(RunFolder(out))
    if then is not None and look(config.data) not in (None, then):
        _log.warning(
            "pictures in %s have come, gone or changed since %s was started: what it has so far is "
            "of those before; choose another --out to train on these alone",
            *(config.data.root, out),
        )


def _stored_files(folder: RunFolder) -> str | None:
    """Return the mark of the files that a run was started with, if it is known."""
    if not folder.allocation.exists():
        return None
    with suppress(CheckpointError):  # who needs more of it says what is wrong
        return read_table(folder.allocation, "").get(_FILES)
    return None


def _read_summary(folder: RunFolder) -> dict[str, Any]:
    return read_table(folder.summary, "remove it, and --resume makes it again")


@contextmanager
def opened(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    make: Callable[[Config], Simulator] | None = None,
) -> Iterator["Experiment"]:
    """Open a run folder, new or to be continued, and hold it for this process.

    Args:
        config: What is to be run.
        out: The folder.
        resume: Whether a run that is there may be continued.
        make: Builds the simulator, as `build` does unless given; a deployment has one whose
            clients are elsewhere.

    Raises:
        CheckpointError: the folder is in use, damaged, or would be overwritten.
        ConfigError: a run to be continued was started with other settings.
    """
    folder = RunFolder(out)
    started = may_write(folder, resume)
    simulator = (make or build)(config)
    simulator.levels()  # an impossible budget must show before anything is written
    with folder.held():
        # Another process may have come first while this one loaded its data.
        if may_write(folder, resume):
            check_same_run(stored_config(folder), config)
            _check_pictures(folder, simulator)
            tell_changed(config, out)
            _compare_versions(folder)
        elif resume and not started:
            _log.info("there is no run in %s yet: starting from round 1", out)
        with explained(out):
            experiment = _begin(config, folder, simulator)
        yield experiment


def about_model(world: Federation) -> dict[str, Any]:
    """Return what a net does not say itself: what it takes, and what comes out of it."""
    return {
        "classes": world.classes,
        "image": list(world.shape),
        "mean": world.mean,
        "std": world.std,
    }


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
        return resolve(folder.config)
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


def _check_pictures(folder: RunFolder, simulator: Simulator) -> None:
    """Refuse to go on with pictures that have come, gone or moved since: test might be train."""
    if not folder.allocation.exists():
        return
    remedy = "remove it if the pictures are still those of the run, and --resume goes on"
    then = read_table(folder.allocation, remedy).get("pictures")
    if then not in (None, mark_of(simulator.federation)):
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


def _finished_rounds(folder: RunFolder) -> int:
    """Return how many rounds the results in a folder are of; 0 where there are none."""
    rounds = _read_summary(folder).get("rounds") if folder.summary.exists() else 0
    return rounds if isinstance(rounds, int) else 0


def _begin(config: Config, folder: RunFolder, simulator: Simulator) -> "Experiment":
    limit, device = simulator.memory.limit, simulator.device
    simulator.memory = open_memory(folder.checkpoint, limit=limit, device=device)
    start = simulator.start()
    snapshot = load_checkpoint(folder.checkpoint, start)
    done = 0 if snapshot is None else snapshot.server.round_num
    known = max(done, _finished_rounds(folder))  # of a finished run the weights may be gone
    if known > config.rounds:
        raise ConfigError(
            f"rounds = {config.rounds}, but {folder.path} is at round {known} already; "
            f"ask for {known} or more"
        )
    # Whatever is refused is refused before anything is changed.
    if snapshot is None:
        _check_none_is_lost(folder)
    read_until(folder.rounds, done)
    folder.summary.unlink(missing_ok=True)  # it would speak of fewer rounds
    origin = read_toml(folder.config).get(META) if folder.config.exists() else versions()
    document = {**to_table(config), META: origin}
    write_atomically(folder.config, tomli_w.dumps(document).encode())
    devices = [asdict(each) for each in start.server.fleet]
    marked = {"devices": devices, "pictures": mark_of(simulator.federation)}
    if (files := _stored_files(folder) or files_mark(config.data)) is not None:
        marked[_FILES] = files
    write_json(folder.allocation, marked)
    lines = keep_until(folder.rounds, done)
    brief = [line.brief() for line in lines]
    return Experiment(config, folder, simulator, snapshot or start, brief, total_costs(lines))


def _check_none_is_lost(folder: RunFolder) -> None:
    """Refuse to begin anew, and to cut off all rounds, where a checkpoint must have been."""
    if not folder.config.exists():
        return
    rounds, every = len(load_records(folder.path)), stored_config(folder).checkpoint_every
    if rounds > every:
        raise CheckpointError(
            f"{folder.path} has {rounds} rounds, but their checkpoint is missing from "
            f"{folder.checkpoint}; bring it back, or start again with another --out"
        )


@dataclass
class Experiment:
    """A run in progress: what it is made of, and how far it is."""

    config: Config
    folder: RunFolder
    simulator: Simulator
    snapshot: Snapshot
    lines: list[RoundLine]  # of the rounds so far, in brief
    spent: ClientCost  # by all clients so far

    def rounds(self) -> Iterator[RoundLine]:
        """Run the rounds that are missing; each is on the disk before it is yielded."""
        for record in self._records():
            line = line_of(record)
            due = line.round % self.config.checkpoint_every == 0
            with explained(self.folder.path):
                append(self.folder.rounds, line)
                if due or line.round == self.config.rounds:
                    save_checkpoint(self.folder.checkpoint, record.snapshot)
            self.snapshot = record.snapshot
            self.lines.append(line.brief())
            self.spent = total_costs([line]) + self.spent
            yield line

    def _records(self) -> Iterator[RoundRecord]:
        with explained(self.folder.path):  # memories may go to the disk within a round
            yield from self.simulator.rounds(self.snapshot)

    def finish(self) -> dict[str, Any]:
        """Write the models and, last of all, the summary; return it."""
        server, levels = self.snapshot.server, self.simulator.levels()
        about = about_model(self.simulator.federation)
        compact = {level.rho: self.simulator.compact(server, level.rho) for level in levels}
        summary = summarise(
            self.config,
            self.lines,
            spent=self.spent,
            dense=cost(self.simulator.graph.full()),
            levels=[(level, self.simulator.evaluate(compact[level.rho])) for level in levels],
            devices=server.fleet,
            calibrated=self.simulator.at_home(compact),
        )
        with explained(self.folder.path):
            whole = self.simulator.delivered(server)
            kept = {"kept": whole.submodel.to_lists()}
            write_tensors(self.folder.model, whole.weights, about | kept)
            for rho, local in compact.items():
                kept = {"kept": local.submodel.to_lists()}
                write_tensors(self.folder.level(rho), local.weights, about | kept | {"rho": rho})
            write_json(self.folder.summary, summary)
        return summary
