"""Rows are on the disk after every run, and what has a row is not run again."""

import io

import pytest
from rich.console import Console

from dapperfl.errors import CheckpointError
from dapperfl.lab.compare.collect import Collection, Files, Results, collect
from dapperfl.lab.compare.log import Log, origin, read_log
from dapperfl.lab.compare.planned import Base, plan_runs
from dapperfl.lab.compare.rows import read_rows
from dapperfl.lab.compare.variants import parse_variants
from dapperfl.lab.continuing import FILES
from dapperfl.lab.folder import RunFolder, write_json
from tests.lab.compare.made_up import Scheduler, weights


@pytest.fixture
def scheduler(monkeypatch):
    return Scheduler(monkeypatch)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path, "mine")


def _plan(text="fedavg,moon", seeds=(0, 1)):
    return plan_runs(Base("demo", None, ("rounds=2",)), parse_variants(text), seeds)


def _collect(runs, files, results, *, keep_weights=True, wanted=None):
    log = Log.begin(files.log, "the command")
    how = Collection(Console(file=io.StringIO()), log, keep_weights=keep_weights)
    return collect(wanted or runs, runs, files, results, how)


def test_every_run_has_its_row_and_its_rounds(scheduler, files):
    runs = _plan()
    assert _collect(runs, files, Results()) == []
    rows = read_rows(files.rows)
    # seed s: 10 + s and 20 + s, then 20 + s twice
    assert [(row["label"], row["seed"], row["best"]) for row in rows] == [
        ("fedavg", "0", "20.0000"), ("fedavg", "1", "21.0000"),
        ("moon", "0", "20.0000"), ("moon", "1", "21.0000"),
    ]  # fmt: skip
    assert [row["global"] for row in read_rows(files.rounds)][:4] == [
        "15.0000", "20.0000", "16.0000", "21.0000",
    ]  # fmt: skip


def test_a_row_knows_the_files_of_pictures_that_its_run_was_started_with(scheduler, files):
    runs = _plan("fedavg")
    _collect(runs, files, Results())
    write_json(RunFolder(runs[0].folder(files.out)).allocation, {FILES: "mark"})
    _collect(runs, files, Results())
    assert [row[FILES] for row in read_rows(files.rows)] == ["mark", ""]


def test_a_failed_run_is_returned_and_the_others_have_rows(scheduler, files):
    runs = _plan()
    scheduler.failing = {"demo: moon, seed 0"}
    [failure] = _collect(runs, files, Results())
    assert (failure.run.name, failure.error) == ("demo: moon, seed 0", "it broke")
    assert len(read_rows(files.rows)) == 3


def test_a_finished_run_without_its_rounds_is_a_failure_and_the_others_have_rows(scheduler, files):
    runs = _plan()
    _collect(runs, files, Results())
    RunFolder(runs[0].folder(files.out)).rounds.unlink()
    [failure] = _collect(runs, files, Results())
    assert failure.run is runs[0]
    assert "rounds.jsonl holds 0 rounds, but the run is at the end of round 2" in failure.error
    assert len(read_rows(files.rows)) == 3


@pytest.mark.parametrize("name", ["taken", "taken/below"])
def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_is_run(
    scheduler, tmp_path, name
):
    (tmp_path / "taken").write_text("a thesis")
    with pytest.raises(CheckpointError, match="taken is a file; choose another --out"):
        _collect(_plan(), Files(tmp_path / name, "mine"), Results())
    assert scheduler.begun == []


def test_a_row_from_a_file_spares_the_run_even_without_its_folder(scheduler, files, tmp_path):
    runs = _plan()
    _collect(runs[:3], files, Results())
    for run in runs[:3]:
        run.folder(tmp_path).rename(tmp_path / f"away-{run.label}-{run.config.seed}")
    results = Results()
    results.add_files(files.rows)
    scheduler.begun.clear()
    _collect(runs, files, results)
    assert scheduler.begun == ["demo: moon, seed 1"]
    assert len(read_rows(files.rows)) == 4
    assert len(read_rows(files.rounds)) == 8


def test_a_run_of_two_files_has_every_round_once(scheduler, files, tmp_path):
    runs = _plan()
    for name in ("mine", "yours"):
        _collect(runs, Files(tmp_path, name), Results())
    results = Results()
    for name in ("mine", "yours"):
        results.add_files(Files(tmp_path, name).rows)
    results.write(runs, files)
    assert len(read_rows(files.rounds)) == 8


def test_weights_go_when_they_are_not_wanted_and_the_run_stays_finished(scheduler, files, tmp_path):
    runs = _plan("fedavg", (0,))
    _collect(runs, files, Results())
    assert len(weights(tmp_path)) == 3
    _collect(runs, files, Results(), keep_weights=False)
    assert weights(tmp_path) == []
    scheduler.begun.clear()
    _collect(runs, files, Results())
    assert scheduler.begun == []


def test_the_log_counts_the_runs_of_each_command(scheduler, files):
    runs = _plan()
    _collect(runs, files, Results(), wanted=runs[:1])
    _collect(runs, files, Results())  # the first one is found in its folder
    entries = read_log(files.log)
    assert sum(entry["runs"] for entry in entries) == 4
    assert all(entry["command"] == "the command" for entry in entries)
    [text] = origin(files.log)
    assert text.startswith("Made by `the command`: 4 runs in 0:0")
    before = files.log.read_text()
    _collect(runs, files, Results())
    assert files.log.read_text() == before  # nothing was run


@pytest.mark.parametrize("text", ["[1]", '[{"command": "x"}]', "{", "7"])
def test_a_damaged_log_is_named(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"t\.json .*; remove it"):
        origin(tmp_path / "t.json")
    with pytest.raises(CheckpointError, match=r"t\.json .*; remove it"):
        Log.begin(tmp_path / "t.json", "a command that would take hours")
