"""Runs and their folders: complete, resumable, never overwritten."""

import itertools
import json
import logging
import os
import shutil
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch

from dapperfl.core.state import State
from dapperfl.data.partition import partition
from dapperfl.errors import BudgetError, CheckpointError, ConfigError
from dapperfl.lab import experiment as module
from dapperfl.lab.build import build_on
from dapperfl.lab.experiment import check_same_run, finished_summary, opened, run
from dapperfl.lab.folder import RunFolder, read_tensors
from dapperfl.lab.records import load_records
from dapperfl.lab.resolve import resolve
from dapperfl.runtime.checkpoint import save_checkpoint
from tests.data.pictures.trees import plant
from tests.lab import toy_world
from tests.lab.conftest import TOY, assert_equal_runs


def _weights(folder: Path) -> State:
    return read_tensors(RunFolder(folder).model)[0]


def _interrupt(config, out: Path, after: int) -> None:
    """Run some rounds, then stop as if somebody had pressed Ctrl-C."""
    with opened(config, out) as experiment:
        for _ in itertools.islice(experiment.rounds(), after):
            pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    run(resolve(None, TOY), out)
    return out


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
    _interrupt(toy(), tmp_path / "cut", after)
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
    _interrupt(toy("checkpoint_every=2"), out, 1)
    assert len(load_records(out)) == 1
    assert not (out / "checkpoint").exists()
    with opened(toy("checkpoint_every=1"), out, resume=True) as experiment:  # it may change
        assert experiment.lines == []
    run(toy(), out, resume=True)
    assert_equal_runs(finished, out)


def test_the_summary_of_a_resumed_run_counts_the_costs_of_all_rounds(finished, toy, tmp_path):
    lines = load_records(finished)
    total = sum(cost.bytes_up for line in lines for cost in line.costs.values())
    _interrupt(toy(), tmp_path / "cut", 2)
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
    _interrupt(toy(), out, 2)
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


def test_fewer_rounds_than_done_are_refused(finished, toy):
    with pytest.raises(ConfigError, match=r"rounds = 2, but .* is at round 3 already"):
        run(toy("rounds=2"), finished, resume=True)
    assert finished_summary(toy(), finished) is not None


def test_without_its_weights_a_finished_run_is_not_cut_short_either(toy, tmp_path):
    out = tmp_path / "light"
    run(toy("rounds=2"), out)
    shutil.rmtree(RunFolder(out).checkpoint)
    with pytest.raises(ConfigError, match=r"rounds = 1, but .* is at round 2 already"):
        run(toy("rounds=1"), out, resume=True)
    assert finished_summary(toy("rounds=2"), out) is not None
    assert len(load_records(out)) == 2


def test_a_continuation_that_is_refused_leaves_everything_as_it_was(toy, tmp_path):
    out = tmp_path / "run"
    run(toy("rounds=2"), out)
    first, _ = RunFolder(out).rounds.read_text().splitlines()
    RunFolder(out).rounds.write_text(f"{first}\n")
    files = [path for path in out.rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(CheckpointError, match=r"holds 1 rounds, .* end of round 2"):
        run(toy("rounds=3"), out, resume=True)
    assert {path: path.read_bytes() for path in files} == before


@pytest.mark.parametrize("text", ["", "null", "[]", '{"dev'])
def test_a_damaged_allocation_is_named_with_a_way_on(toy, tmp_path, text):
    out = tmp_path / "cut"
    _interrupt(toy("rounds=2"), out, 1)
    whole = RunFolder(out).allocation.read_bytes()
    RunFolder(out).allocation.write_text(text)
    with pytest.raises(CheckpointError, match=r"allocation\.json .*; remove it if the pictures"):
        run(toy("rounds=2"), out, resume=True)
    RunFolder(out).allocation.unlink()
    assert run(toy("rounds=2"), out, resume=True)["rounds"] == 2
    assert RunFolder(out).allocation.read_bytes() == whole


@pytest.mark.parametrize("text", ["", "null", "[]", '{"rou'])
def test_a_damaged_summary_is_named_and_can_be_made_again(toy, tmp_path, text):
    out = tmp_path / "done"
    expected = run(toy("rounds=1"), out)
    RunFolder(out).summary.write_text(text)
    with pytest.raises(CheckpointError, match=r"summary\.json .*; remove it, and --resume"):
        run(toy("rounds=1"), out, resume=True)
    RunFolder(out).summary.unlink()
    assert run(toy("rounds=1"), out, resume=True) == expected


def test_resuming_a_finished_run_changes_nothing(finished, toy):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    summary = run(toy("engine=loop"), finished, resume=True)
    assert summary == json.loads((finished / "summary.json").read_text())
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=1", "seed = 1, but the run was started with 0"),
        ("train.lr=0.5", "train.lr = 0.5, but the run was started with 0.05"),
        ("method=fedavg", 'method.name = "fedavg", but the run was started with "dapperfl"'),
        ("fleet.rhos=[0.0]", "fleet.rhos = [0.0], but the run was started with [0.0, 0.5, 0.8]"),
    ],
)
@pytest.mark.parametrize("done", [True, False])
def test_a_run_is_not_continued_with_other_settings(
    finished, toy, tmp_path, setting, message, done
):
    if not done:
        _interrupt(toy(), tmp_path / "cut", 0)
    with pytest.raises(ConfigError) as caught:
        run(toy(setting), finished if done else tmp_path / "cut", resume=True)
    assert message in str(caught.value)


def test_an_option_that_begins_like_the_folders_is_a_setting_of_its_own(toy, tmp_path):
    rooted = "data=tests.lab.toy_world:load_rooted"
    _interrupt(toy(rooted, "data.root_light=0.4"), tmp_path / "cut", 1)
    with pytest.raises(ConfigError, match=r"data\.root_light = 0\.5, but the run was started"):
        run(toy(rooted, "data.root_light=0.5"), tmp_path / "cut", resume=True)


def test_a_run_is_not_continued_on_other_pictures(toy, tmp_path, monkeypatch):
    config = toy("data=tests.lab.toy_world:load_sized")
    _interrupt(config, tmp_path / "cut", 1)
    kept = RunFolder(tmp_path / "cut").allocation.read_bytes()
    one_more = partial(toy_world.load_sized, number=65)
    monkeypatch.setattr(module, "build", lambda given: build_on(given, _spread(given, one_more)))
    with pytest.raises(ConfigError, match=r"the pictures are not those that .* was started with"):
        run(config, tmp_path / "cut", resume=True)
    assert RunFolder(tmp_path / "cut").allocation.read_bytes() == kept


def test_a_finished_run_does_not_answer_for_another_folder(toy, tmp_path, monkeypatch):
    sized = "data=tests.lab.toy_world:load_sized"
    run(toy(sized, "data.root=here"), tmp_path / "done")
    assert finished_summary(toy(sized, "data.root=here"), tmp_path / "done") is not None
    there = toy(sized, "data.root=there")
    assert run(there, tmp_path / "done", resume=True)["rounds"] == there.rounds  # moved
    run(toy(sized, "data.root=here"), tmp_path / "other")
    one_more = partial(toy_world.load_sized, number=65)
    monkeypatch.setattr(module, "build", lambda given: build_on(given, _spread(given, one_more)))
    with pytest.raises(ConfigError, match="the pictures are not those"):
        run(there, tmp_path / "other", resume=True)


def test_pictures_that_have_changed_since_are_told(toy, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path / "home"))
    tree = plant(tmp_path / "tree", {f"{d}/{c}": 5 for d in ("day", "night") for c in ("a", "b")})
    settings = ("data=folder", f"data.root={tree}", "data.size=8", "data.fraction=0.5", "rounds=1")
    run(toy(*settings), tmp_path / "done")
    first = run(toy(*settings), tmp_path / "done", resume=True)
    assert "have come, gone or changed" not in caplog.text
    (tree / "day/a/000.png").rename(tree / "day/a/009.png")
    for more in ("rounds=1", "rounds=2", "rounds=2"):  # finished, continued, finished
        caplog.clear()
        last = run(toy(*settings, more), tmp_path / "done", resume=True)
        assert "have come, gone or changed" in caplog.text
    assert (first["rounds"], last["rounds"]) == (1, 2)


def _spread(config, load):
    fleet = {"devices": config.fleet.devices, "rhos": config.fleet.rhos}
    return partition(load(None), config.data, **fleet, seed=config.seed)


def test_the_order_of_an_allocation_is_part_of_the_run(toy):
    one = toy("data.allocation.dark=1", "data.allocation.light=2")
    other = toy("data.allocation.light=2", "data.allocation.dark=1")
    check_same_run(one, one)
    with pytest.raises(ConfigError, match=r"data\.allocation"):
        check_same_run(one, other)


def test_an_existing_folder_is_never_overwritten(finished, toy, tmp_path):
    with pytest.raises(CheckpointError, match=r"is not empty; .*--resume.*another --out"):
        run(toy(), finished)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="is not empty"):
        run(toy(), tmp_path)
    with pytest.raises(CheckpointError, match="it is no run folder"):
        run(toy(), tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


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


def test_other_versions_than_at_the_start_are_mentioned(toy, tmp_path, caplog):
    _interrupt(toy(), tmp_path / "run", 0)
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))
    with caplog.at_level(logging.WARNING):
        _resume_nothing(toy(), tmp_path / "run")
    assert f"started with torch 1.0 and goes on with {torch.__version__}" in caplog.text


def test_other_code_than_at_the_start_is_mentioned(toy, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "versions", lambda: {"commit": "abc"})
    _interrupt(toy(), tmp_path / "run", 0)
    _resume_nothing(toy(), tmp_path / "run")
    assert "commit" not in caplog.text
    monkeypatch.setattr(module, "versions", lambda: {"commit": "def"})
    _resume_nothing(toy(), tmp_path / "run")
    told = "commit abc and goes on with def: its settings may mean something else now"
    assert told in caplog.text


def _resume_nothing(config, out):
    with opened(config, out, resume=True):
        pass


def test_a_damaged_stored_config_is_named(toy, tmp_path):
    _interrupt(toy(), tmp_path / "run", 0)
    (tmp_path / "run" / "config.toml").write_text("rounds =")
    with pytest.raises(CheckpointError, match=r"config.toml cannot be used: .*not valid TOML"):
        run(toy(), tmp_path / "run", resume=True)
