"""Have the runs of a table done, and keep what they came to, also if the process is killed."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dapperfl.errors import CheckpointError
from dapperfl.lab.compare.log import Log
from dapperfl.lab.compare.planned import Planned
from dapperfl.lab.compare.rows import (
    Row,
    read_rows,
    relabelled,
    round_rows,
    row_of,
    write_rows,
)
from dapperfl.lab.continuing import FILES, stored_files
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.records import read_until
from dapperfl.lab.schedule import Job, Outcome, Progress, run_all
from dapperfl.lab.schedule.display import watched_all

Key = tuple[str, int]


@dataclass(frozen=True)
class Failure:
    """A run that a table lacks, and why."""

    run: Planned
    error: str


@dataclass(frozen=True)
class Files:
    """Where the results of one table lie."""

    out: Path
    name: str

    @property
    def rows(self) -> Path:
        """One row a run."""
        return self.out / f"{self.name}.csv"

    @property
    def rounds(self) -> Path:
        """One row a round of every run."""
        return rounds_beside(self.rows)

    @property
    def log(self) -> Path:
        """The commands, versions and times behind the rows."""
        return self.rows.with_suffix(".json")


def rounds_beside(rows: Path) -> Path:
    """Return the file with the rounds of the runs of a file of rows."""
    return rows.with_name(f"{rows.stem}-rounds.csv")


@dataclass
class Results:
    """What is known of each run, by its key."""

    rows: dict[Key, Row] = field(default_factory=dict)
    rounds: dict[Key, list[Row]] = field(default_factory=dict)

    def add_files(self, rows: Path) -> None:
        """Take in what a file of rows says, and the file of rounds beside it.

        Several files may have the same run: the last one speaks for it, each round once.
        """
        for row in read_rows(rows):
            self.rows[_key(row)] = row
        found: dict[Key, dict[str, Row]] = {}
        if rounds_beside(rows).exists():
            for row in read_rows(rounds_beside(rows)):
                found.setdefault(_key(row), {})[row.get("round", "")] = row
        self.rounds |= {key: list(own.values()) for key, own in found.items()}

    def take(self, run: Planned, summary: Mapping[str, Any], folder: Path) -> None:
        """Take in a finished run, all of whose rounds must be in its folder."""
        lines = read_until(RunFolder(folder).rounds, run.config.rounds)
        files = stored_files(RunFolder(folder))
        self.rows[run.key] = {**row_of(run, summary, lines), **({FILES: files} if files else {})}
        self.rounds[run.key] = round_rows(run, lines)

    def of(self, runs: Sequence[Planned]) -> tuple[list[Row], list[Row]]:
        """Return the rows and the rounds of some runs, in their order and under their labels."""
        found = [run for run in runs if run.key in self.rows]
        rows = [relabelled(self.rows[run.key], run) for run in found]
        rounds = [relabelled(row, run) for run in found for row in self.rounds.get(run.key, [])]
        return rows, rounds

    def write(self, runs: Sequence[Planned], files: Files) -> None:
        """Write the rows and the rounds of some runs."""
        rows, rounds = self.of(runs)
        write_rows(files.rows, rows)
        write_rows(files.rounds, rounds)


def _key(row: Row) -> Key:
    return row["id"], int(row["seed"])


@dataclass(frozen=True)
class Collection:
    """How runs are done: beside how many others, on which screen, and whether weights are kept."""

    console: Console
    log: Log
    workers: int | None = None
    keep_weights: bool = True


def collect(
    wanted: Sequence[Planned],
    table: Sequence[Planned],
    files: Files,
    results: Results,
    how: Collection,
) -> list[Failure]:
    """Do the wanted runs that have no row yet; write the rows of the table after every run.

    Returns:
        The runs that failed; `results` has all others.

    Raises:
        CheckpointError: there is a file where the folder of all runs is to be.
    """
    _refuse_file(files.out)
    missing = [run for run in wanted if run.key not in results.rows]
    jobs = {run.folder(files.out): run for run in missing}
    listed = [Job(run.name, run.config, folder) for folder, run in jobs.items()]
    began: set[Path] = set()
    failures: list[Failure] = []

    def take(event: Progress | Outcome) -> None:
        run = jobs[event.job.out]
        if isinstance(event, Progress):
            began.add(event.job.out)
        elif (error := _taken(results, run, event)) is not None:
            failures.append(Failure(run, error))
        else:
            results.write(table, files)
            if event.job.out in began:
                how.log.note_run()
            if not how.keep_weights:
                drop_weights(event.job.out)

    if listed:
        with watched_all(how.console, listed) as watch:

            def show(event: Progress | Outcome) -> None:
                watch(event)
                take(event)

            run_all(listed, workers=how.workers, show=show)
    return failures


def _refuse_file(out: Path) -> None:
    """Say once for all runs that their folder cannot be made."""
    there = next(place for place in (out, *out.parents) if place.exists())
    if not there.is_dir():
        raise CheckpointError(f"{there} is a file; choose another --out")


def _taken(results: Results, run: Planned, ended: Outcome) -> str | None:
    """Take in how a run ended; return why it has no row, None if it has one."""
    if ended.summary is None:
        return ended.error or "no reason given"
    try:
        results.take(run, ended.summary, ended.job.out)
    except CheckpointError as error:  # the others go on
        return str(error)
    return None


def drop_weights(folder: Path) -> None:
    """Remove a finished run's weights; its records stay, and it still counts as finished."""
    run = RunFolder(folder)
    run.model.unlink(missing_ok=True)
    for place in (run.checkpoint, run.model.with_name("levels")):
        shutil.rmtree(place, ignore_errors=True)
