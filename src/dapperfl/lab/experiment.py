"""One run from its config to its folder, such that it can be killed at any moment.

A round counts once its line is in `rounds.jsonl` and a checkpoint is complete, in this order;
lines after the last checkpoint are cut off on resume and their rounds are computed again.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from dapperfl.core.cost import cost
from dapperfl.core.messages import ClientCost
from dapperfl.data.benchmark import Federation
from dapperfl.errors import ConfigError
from dapperfl.lab.build import build, files_mark
from dapperfl.lab.config import Config, to_table
from dapperfl.lab.continuing import (
    FILES,
    check_continuation,
    check_none_is_lost,
    finished_rounds,
    finished_summary,
    may_write,
    stored_files,
    tell_changed,
)
from dapperfl.lab.folder import (
    RunFolder,
    explained,
    write_atomically,
    write_json,
    write_tensors,
)
from dapperfl.lab.own_code import own_code
from dapperfl.lab.pictures import mark_of
from dapperfl.lab.records import (
    RoundLine,
    append,
    keep_until,
    line_of,
    read_until,
)
from dapperfl.lab.resolve import META, read_toml
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
            check_continuation(folder, config, simulator.federation)
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


def _begin(config: Config, folder: RunFolder, simulator: Simulator) -> "Experiment":
    limit, device = simulator.memory.limit, simulator.device
    simulator.memory = open_memory(folder.checkpoint, limit=limit, device=device)
    start = simulator.start()
    snapshot = load_checkpoint(folder.checkpoint, start)
    done = 0 if snapshot is None else snapshot.server.round_num
    known = max(done, finished_rounds(folder))  # of a finished run the weights may be gone
    if known > config.rounds:
        raise ConfigError(
            f"rounds = {config.rounds}, but {folder.path} is at round {known} already; "
            f"ask for {known} or more"
        )
    # Whatever is refused is refused before anything is changed.
    if snapshot is None:
        check_none_is_lost(folder)
    read_until(folder.rounds, done)
    folder.summary.unlink(missing_ok=True)  # it would speak of fewer rounds
    began = versions() | own_code(config)
    origin = read_toml(folder.config).get(META) if folder.config.exists() else began
    document = {**to_table(config), META: origin}
    write_atomically(folder.config, tomli_w.dumps(document).encode())
    devices = [asdict(each) for each in start.server.fleet]
    marked = {"devices": devices, "pictures": mark_of(simulator.federation)}
    if (files := stored_files(folder) or files_mark(config.data)) is not None:
        marked[FILES] = files
    write_json(folder.allocation, marked)
    lines = keep_until(folder.rounds, done)
    brief = [line.brief() for line in lines]
    return Experiment(config, folder, simulator, snapshot or start, brief, total_costs(lines))


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
