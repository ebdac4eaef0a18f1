"""A run that goes on is the run that was started, and what has changed is told."""

import logging
import shutil
from functools import partial

import pytest
import torch

from dapperfl.data.partition import partition
from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.lab import continuing, experiment
from dapperfl.lab.build import build_on
from dapperfl.lab.continuing import check_same_run, finished_summary
from dapperfl.lab.experiment import opened, run
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.records import load_records
from tests.data.pictures.trees import plant
from tests.lab import toy_world
from tests.lab.conftest import assert_equal_runs, edit, interrupt


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


def test_a_run_from_before_a_setting_goes_on_without_it(toy, tmp_path):
    off = toy("method.recalibrate_rounds=0")
    whole, out = tmp_path / "whole", tmp_path / "old"
    run(off, whole)
    interrupt(off, out, 1)
    folder = RunFolder(out)
    lines = folder.config.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("recalibrate_rounds")]
    assert len(kept) == len(lines) - 1
    folder.config.write_text("\n".join(kept))
    with pytest.raises(ConfigError, match="but the run was started with 0"):
        run(toy(), out, resume=True)
    run(off, out, resume=True)
    assert_equal_runs(out, whole)
    assert finished_summary(off, out) is not None


@pytest.mark.parametrize("text", ["", "null", "[]", '{"dev'])
def test_a_damaged_allocation_is_named_with_a_way_on(toy, tmp_path, text):
    out = tmp_path / "cut"
    interrupt(toy("rounds=2"), out, 1)
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
        interrupt(toy(), tmp_path / "cut", 0)
    with pytest.raises(ConfigError) as caught:
        run(toy(setting), finished if done else tmp_path / "cut", resume=True)
    assert message in str(caught.value)


def test_an_option_that_begins_like_the_folders_is_a_setting_of_its_own(toy, tmp_path):
    rooted = "data=tests.lab.toy_world:load_rooted"
    interrupt(toy(rooted, "data.root_light=0.4"), tmp_path / "cut", 1)
    with pytest.raises(ConfigError, match=r"data\.root_light = 0\.5, but the run was started"):
        run(toy(rooted, "data.root_light=0.5"), tmp_path / "cut", resume=True)


def test_a_run_is_not_continued_on_other_pictures(toy, tmp_path, monkeypatch):
    config = toy("data=tests.lab.toy_world:load_sized")
    interrupt(config, tmp_path / "cut", 1)
    kept = RunFolder(tmp_path / "cut").allocation.read_bytes()
    one_more = partial(toy_world.load_sized, number=65)
    monkeypatch.setattr(
        experiment, "build", lambda given: build_on(given, _spread(given, one_more))
    )
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
    monkeypatch.setattr(
        experiment, "build", lambda given: build_on(given, _spread(given, one_more))
    )
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


def test_code_of_ones_own_that_has_changed_since_is_told(toy, own_module, tmp_path, caplog):
    settings = (f"method={own_module.stem}:Mine", "rounds=1")
    run(toy(*settings), tmp_path / "done")
    run(toy(*settings), tmp_path / "done", resume=True)
    assert "changed" not in caplog.text
    edit(own_module)
    for more in ("rounds=1", "rounds=2", "rounds=2"):  # finished, continued, finished
        caplog.clear()
        run(toy(*settings, more), tmp_path / "done", resume=True)
        [told] = [text for text in caplog.messages if "changed" in text]
        assert told == (
            f"{own_module.name} has changed since {tmp_path / 'done'} was started: what it has so "
            "far is of the code before; choose another --out to train with this code alone"
        )


def test_a_run_from_before_the_marks_of_code_goes_on_without_a_word(
    toy, own_module, tmp_path, caplog
):
    config = toy(f"method={own_module.stem}:Mine")
    interrupt(config, tmp_path / "old", 1)
    stored = RunFolder(tmp_path / "old").config
    kept = [line for line in stored.read_text().splitlines() if "source of" not in line]
    stored.write_text("\n".join(kept))
    edit(own_module)
    run(config, tmp_path / "old", resume=True)
    assert "changed" not in caplog.text


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


def test_other_versions_than_at_the_start_are_mentioned(toy, tmp_path, caplog):
    interrupt(toy(), tmp_path / "run", 0)
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))
    with caplog.at_level(logging.WARNING):
        _resume_nothing(toy(), tmp_path / "run")
    assert f"started with torch 1.0 and goes on with {torch.__version__}" in caplog.text


def test_other_code_than_at_the_start_is_mentioned(toy, tmp_path, caplog, monkeypatch):
    for module in (experiment, continuing):
        monkeypatch.setattr(module, "versions", lambda: {"commit": "abc"})
    interrupt(toy(), tmp_path / "run", 0)
    _resume_nothing(toy(), tmp_path / "run")
    assert "commit" not in caplog.text
    monkeypatch.setattr(continuing, "versions", lambda: {"commit": "def"})
    _resume_nothing(toy(), tmp_path / "run")
    told = "commit abc and goes on with def: its settings may mean something else now"
    assert told in caplog.text


def _resume_nothing(config, out):
    with opened(config, out, resume=True):
        pass


def test_a_damaged_stored_config_is_named(toy, tmp_path):
    interrupt(toy(), tmp_path / "run", 0)
    (tmp_path / "run" / "config.toml").write_text("rounds =")
    with pytest.raises(CheckpointError, match=r"config.toml cannot be used: .*not valid TOML"):
        run(toy(), tmp_path / "run", resume=True)
