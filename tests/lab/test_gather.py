"""Run folders are found, and read by their own files alone."""

import pytest

from dapperfl.errors import CheckpointError
from dapperfl.lab.folder import RunFolder, read_json, write_json
from dapperfl.lab.gather import load_run_folder, load_runs
from tests.lab.made_runs import DEVICES, VERSIONS, write_run


def test_runs_are_found_at_any_depth_in_order_and_each_once(tmp_path):
    one = write_run(tmp_path / "b" / "deep" / "one")
    two = write_run(tmp_path / "a" / "two")
    (two / "levels").mkdir()
    assert [run.path for run in load_runs([tmp_path])] == [two, one]
    assert [run.path for run in load_runs([one, tmp_path])] == [one, two]


def test_a_run_says_what_it_was_and_how_far_it_is(tmp_path):
    write_run(tmp_path / "done", "method=fedprox", "method.mu=0.5", "seed=3")
    write_run(tmp_path / "half", "seed=4", finished=False)
    done, half = load_runs([tmp_path])
    assert (done.method, done.seed, done.rounds, done.benchmark) == (
        "fedprox:default",
        3,
        2,
        "minidigits",
    )
    assert done.settings["method.mu"] == 0.5
    assert done.versions == VERSIONS
    assert done.devices == DEVICES
    assert [line.mean for line in done.lines] == [20.0, 40.0]
    assert done.summary is not None
    assert half.summary is None
    assert (len(half.lines), half.rounds) == (2, 7)


def test_a_run_in_its_first_round_is_a_run(tmp_path):
    write_run(tmp_path, dark=(), light=(), finished=False)
    assert load_runs([tmp_path])[0].lines == ()


def test_somebodys_own_method_need_not_be_here(tmp_path):
    path = RunFolder(write_run(tmp_path)).config
    path.write_text(path.read_text().replace('name = "dapperfl"', 'name = "theirs.module:Their"'))
    assert load_run_folder(tmp_path).method == "theirs.module:Their:default"


def test_keys_that_came_later_have_their_defaults(tmp_path):
    path = RunFolder(write_run(tmp_path)).config
    path.write_text(path.read_text().replace("validation = 0.0\n", ""))
    assert load_run_folder(tmp_path).settings["data.validation"] == 0.0


@pytest.mark.parametrize(("name", "why"), [("empty", "holds no run"), ("none", "is no folder")])
def test_a_folder_without_runs_is_named(tmp_path, name, why):
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "good")
    with pytest.raises(CheckpointError, match=f"{name} {why}; name a run folder"):
        load_runs([tmp_path / "good", tmp_path / name])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "rounds = = 3"),
        ("config.toml", "rounds = 3"),
        ("allocation.json", "[]"),
        ("allocation.json", '{"devices": [{"id": 1}]}'),
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("summary.json", "{"),
        ("rounds.jsonl", "{}\n"),
        ("rounds.jsonl", ""),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content):
    (write_run(tmp_path) / name).write_text(content)
    with pytest.raises(CheckpointError, match=name):
        load_runs([tmp_path])


def test_a_summary_is_read_as_it_is(tmp_path):
    path = RunFolder(write_run(tmp_path)).summary
    write_json(path, {**read_json(path), "more": 1})
    summary = load_run_folder(tmp_path).summary
    assert summary is not None
    assert summary["more"] == 1
