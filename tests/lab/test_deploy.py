"""The [deploy] table: read like any other, and without effect on a simulation."""

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.config import to_keys
from dapperfl.lab.experiment import run
from tests.lab.conftest import assert_equal_runs


def test_its_keys_are_set_like_any_other(toy):
    config = toy("deploy.deadline=5", "deploy.devices=3", "deploy.guard.strikes=2")
    assert (config.deploy.deadline, config.deploy.devices) == (5.0, 3)
    assert config.deploy.guard.strikes == 2
    assert to_keys(config)["deploy.guard.clip"] == "none"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("deploy.deadline=0", r"deploy\.deadline = 0\.0: expected above 0"),
        ("deploy.min_replies=0", r"deploy\.min_replies"),
        ("deploy.guard.strikes=0", r"deploy\.guard\.strikes"),
        ("deploy.guard.strike=1", 'unknown key "deploy.guard.strike"'),
        ("deploy.picture=[1,32,32]", "expected 3 channels and a square"),
        ("deploy.picture=[3,32,16]", "expected 3 channels and a square"),
        ("deploy.picture=[3,9000,9000]", "at most 4096"),
        ('deploy.classes=["a","a"]', "twice"),
        ('deploy.classes=["a",""]', "cannot be the name of a folder"),
        ('deploy.classes=["a","../b"]', "cannot be the name of a folder"),
    ],
)
def test_wrong_values_are_named(toy, setting, words):
    with pytest.raises(ConfigError, match=words):
        toy(setting)


def test_class_names_say_that_devices_bring_the_pictures(toy):
    assert not toy().deploy.devices_bring_pictures
    assert toy("deploy.own_folders=true").deploy.devices_bring_pictures
    assert toy('deploy.classes=["a","b"]').deploy.devices_bring_pictures


def test_a_simulation_does_not_read_it(toy, tmp_path):
    other = ("deploy.min_replies=9", "deploy.fp16=true", "deploy.guard.clip=0.001")
    run(toy("rounds=1"), tmp_path / "one")
    run(toy("rounds=1", *other), tmp_path / "two")
    assert_equal_runs(tmp_path / "one", tmp_path / "two")


def test_waiting_may_change_on_resume_and_what_is_believed_may_not(toy, tmp_path):
    run(toy("rounds=1"), tmp_path)
    changes = ("deploy.deadline=5", "deploy.devices=2", "deploy.patience=5", "deploy.min_replies=2")
    run(toy("rounds=2", *changes), tmp_path, resume=True)
    with pytest.raises(ConfigError, match=r"deploy\.fp16 = true, but the run was started with"):
        run(toy("rounds=3", "deploy.fp16=true"), tmp_path, resume=True)
