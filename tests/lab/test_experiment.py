"""Runs and their folders: complete, and resumable at any moment."""

import itertools
import json
import logging
import os
import tomllib
from pathlib import Path

import pytest
import torch

from dapperfl.core.state import State
from dapperfl.errors import BudgetError, CheckpointError
from dapperfl.lab import experiment as module
from dapperfl.lab.continuing import finished_summary
from dapperfl.lab.experiment import opened, run
from dapperfl.lab.folder import RunFolder, read_tensors
from dapperfl.lab.records import load_records
from dapperfl.lab.resolve import resolve
from dapperfl.runtime.checkpoint import save_checkpoint
from tests.lab.conftest import assert_equal_runs, interrupt


def _weights(folder: Path) -> State:
    return read_tensors(RunFolder(folder).model)[0]


def test_a_run_folder_holds_everything(finished):
    names = {path.name for path in finished.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.toml",
        "allocation.json",
        "rounds.jsonl",
        "summary.json",
        "checkpoint",
        "model.safetensors",
        "levels",
    }
    levels = sorted(path.name for path in (finished / "levels").iterdir())
    assert levels == [f"rho-{rho}.safetensors" for rho in ("0.00", "0.50", "0.80")]


def test_the_summary_has_the_documented_fields(finished, toy):
    summary = json.loads((finished / "summary.json").read_text())
    lines = load_records(finished)
    assert (summary["method"], summary["preset"]) == ("dapperfl", "default")
    assert summary["benchmark"] == "tests.lab.toy_world:load"
    assert (summary["seed"], summary["rounds"], len(lines)) == (0, 3, 3)
    assert summary["global_accuracy"]["best"] == max(line.mean for line in lines)
    assert summary["domain_accuracy"]["dark"]["last"] == lines[-1].accuracy["dark"]
    assert [level["rho"] for level in summary["levels"]] == [0.0, 0.5, 0.8]
    assert summary["levels"][0]["parameters"] == summary["dense"]["parameters"]
    for level in summary["levels"]:
        assert level["parameters"] <= (1 - level["rho"]) * summary["dense"]["parameters"]
    assert summary["devices"] == json.loads((finished / "allocation.json").read_text())["devices"]
    assert sorted(device["rho"] for device in summary["devices"]) == [0.0, 0.5, 0.8]


def test_the_stored_config_reads_back_and_says_where_it_comes_from(finished, toy):
    assert resolve(finished / "config.toml") == toy()
    meta = tomllib.loads((finished / "config.toml").read_text())["meta"]
    assert meta["torch"] == torch.__version__
    assert meta["threads"] == torch.get_num_threads()


def test_a_level_is_stored_small_with_the_channels_it_keeps(finished):
    weights, about = read_tensors(RunFolder(finished).level(0.8))
    whole = _weights(finished)
    assert sum(t.numel() for t in weights.values()) <= 0.2 * sum(t.numel() for t in whole.values())
    assert about["rho"] == 0.8
    assert about["classes"] == ["red", "green", "blue"]
    assert about["image"] == [3, 8, 8]
    assert all(channels == sorted(channels) for channels in about["kept"].values())


def test_equal_runs_are_equal_files(finished, toy, tmp_path):
    run(toy(), tmp_path / "again")
    for each in ("model.safetensors", "levels/rho-0.50.safetensors"):
        assert (tmp_path / "again" / each).read_bytes() == (finished / each).read_bytes()


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_interrupted_run_ends_where_the_uninterrupted_one_does(finished, toy, tmp_path, after):
    interrupt(toy(), tmp_path / "cut", after)
    assert not (tmp_path / "cut" / "summary.json").exists()
    run(toy(), tmp_path / "cut", resume=True)
    assert_equal_runs(finished, tmp_path / "cut")


def test_checkpoints_may_be_rarer_than_rounds(finished, toy, tmp_path):
    out, config = tmp_path / "cut", toy("checkpoint_every=2")
    with opened(config, out) as experiment:
        rounds = experiment.rounds()
        saved = []
        for _ in range(3):
            next(rounds)
            saved.append([path.name for path in sorted((out / "checkpoint").glob("round-*"))])
    assert saved == [[], ["round-00002"], ["round-00002", "round-00003"]]  # the last one always
    run(config, out, resume=True)
    assert_equal_runs(finished, out)


def test_rounds_after_the_last_checkpoint_are_computed_again(finished, toy, tmp_path):
    out = tmp_path / "cut"
    interrupt(toy("checkpoint_every=2"), out, 1)
    assert len(load_records(out)) == 1
    assert not (out / "checkpoint").exists()
    with opened(toy("checkpoint_every=1"), out, resume=True) as experiment:  # it may change
        assert experiment.lines == []
    run(toy(), out, resume=True)
    assert_equal_runs(finished, out)


def test_the_summary_of_a_resumed_run_counts_the_costs_of_all_rounds(finished, toy, tmp_path):
    lines = load_records(finished)
    total = sum(cost.bytes_up for line in lines for cost in line.costs.values())
    interrupt(toy(), tmp_path / "cut", 2)
    summary = run(toy(), tmp_path / "cut", resume=True)
    assert summary["costs"]["bytes_up"] == total > 0


def test_a_line_without_its_checkpoint_is_cut_and_computed_again(
    finished, toy, tmp_path, monkeypatch
):
    out = tmp_path / "cut"
    with monkeypatch.context() as patch:
        saves = itertools.count(1)

        def save(folder, snapshot):
            if next(saves) == 2:
                raise KeyboardInterrupt
            return real(folder, snapshot)

        real = save_checkpoint
        patch.setattr(module, "save_checkpoint", save)
        with pytest.raises(KeyboardInterrupt):
            run(toy(), out)
    assert len(load_records(out)) == 2
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"schema": 1, "rou')
    run(toy(), out, resume=True)
    assert_equal_runs(finished, out)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(finished, toy, tmp_path, caplog):
    out = tmp_path / "cut"
    interrupt(toy(), out, 2)
    newest = out / "checkpoint" / "round-00002" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\0")
    with caplog.at_level(logging.WARNING):
        run(toy(), out, resume=True)
    assert "round-00002 is damaged" in caplog.text
    assert_equal_runs(finished, out)


def test_more_rounds_continue_a_finished_run(toy, tmp_path):
    run(toy("rounds=1"), tmp_path / "grown")
    run(toy("rounds=2"), tmp_path / "whole")
    assert finished_summary(toy("rounds=2"), tmp_path / "grown") is None
    summary = run(toy("rounds=2"), tmp_path / "grown", resume=True)
    assert summary["rounds"] == 2
    assert resolve(tmp_path / "grown" / "config.toml").rounds == 2
    assert_equal_runs(tmp_path / "whole", tmp_path / "grown")


def test_resuming_a_finished_run_changes_nothing(finished, toy):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    summary = run(toy("engine=loop"), finished, resume=True)
    assert summary == json.loads((finished / "summary.json").read_text())
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_resuming_what_is_not_there_starts_it_and_says_so(finished, toy, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run(toy(), tmp_path / "new", resume=True)
    assert "there is no run in" in caplog.text
    assert_equal_runs(finished, tmp_path / "new")


def test_a_second_process_is_kept_out(toy, tmp_path):
    out = tmp_path / "run"
    with (
        opened(toy(), out),
        pytest.raises(CheckpointError, match="another process is writing to"),
        opened(toy(), out, resume=True),
    ):
        pass


def test_what_cannot_run_leaves_no_folder(toy, tmp_path):
    with pytest.raises(BudgetError):
        run(toy("fleet.rhos=[0.999]", "fleet.devices=2"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("when", range(0, 28, 3))
def test_a_disk_that_is_full_at_any_moment_is_one_line_and_loses_nothing(
    finished, toy, tmp_path, monkeypatch, when
):
    out, written = tmp_path / "run", itertools.count()
    real = os.fsync

    def fsync(handle):
        if next(written) == when:
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(CheckpointError, match=r"No space left on device; .*--resume"):
            run(toy(), out)
    assert not RunFolder(out).summary.exists()
    run(toy(), out, resume=True)
    assert_equal_runs(finished, out)


def test_a_folder_that_cannot_be_made_is_one_line(toy, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*file/run: Not a directory"):
        run(toy(), tmp_path / "file" / "run")
