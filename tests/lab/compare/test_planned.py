"""Which runs there are, and which of them are the same run."""

from dataclasses import replace
from pathlib import Path

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.planned import Base, plan_runs
from dapperfl.lab.compare.variants import parse_variants

DEMO = Base("demo", None)


def _plan(text, *overrides, seeds=(0,)):
    return plan_runs(replace(DEMO, overrides=overrides), parse_variants(text), seeds)


def test_every_variant_has_every_seed():
    runs = _plan("fedavg,moon", seeds=(0, 2))
    assert [(run.label, run.config.seed) for run in runs] == [
        ("fedavg", 0), ("fedavg", 2), ("moon", 0), ("moon", 2),
    ]  # fmt: skip
    assert len({run.folder(Path("x")) for run in runs}) == 4


def test_labels_are_as_typed_and_name_what_the_preset_does_not():
    [run] = _plan("dapperfl:default{method.gamma=0}", "method.epsilon=0.5")
    assert run.label == "dapperfl:default gamma=0 epsilon=0.5"
    assert run.settings == "method.gamma=0; method.epsilon=0.5"


def test_a_label_does_not_hide_the_preset_of_the_file(tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "run.toml"
    path.write_text('[method]\nname = "dapperfl"\npreset = "paper"\n')
    plan_runs(Base("demo", path), parse_variants("default=dapperfl:default,fedavg"), [0])
    assert "has it" not in caplog.text
    [run] = plan_runs(Base("demo", path), parse_variants("default=dapperfl"), [0])
    assert run.config.method.preset == "paper"
    assert f'"default" is dapperfl as {path} has it: preset "paper"' in caplog.text


def test_an_id_is_of_what_is_computed_not_of_where_or_how_it_is_called():
    [run], [same], [other] = (
        _plan("a=dapperfl:paper", "data.root=/here", "engine.device=cpu"),
        _plan("dapperfl:paper{method.gamma=0.01}", seeds=(5,)),  # the preset's own value
        _plan("dapperfl:paper{method.gamma=0.02}"),
    )
    assert run.id == same.id != other.id
    assert _plan("fedavg", "engine.precision=bf16")[0].id != _plan("fedavg")[0].id
    assert _plan("fedavg", "rounds=3")[0].id != _plan("fedavg")[0].id
    assert _plan("fedavg", "deploy.deadline=3")[0].id == _plan("fedavg")[0].id


def test_two_folders_of_pictures_are_two_data_sets():
    here, there = ("data=folder", "data.root=here"), ("data=folder", "data.root=there")
    assert _plan("fedavg", *here)[0].id != _plan("fedavg", *there)[0].id
    folders = [
        replace(DEMO, overrides=each).folder(parse_variants("fedavg")) for each in (here, there)
    ]
    assert folders[0] != folders[1]


def test_an_option_that_begins_like_the_folders_is_part_of_an_id():
    rooted = "data=tests.lab.toy_world:load_rooted"
    ids = {_plan("fedavg", rooted, f"data.root_light={x}")[0].id for x in (0.4, 0.5)}
    assert len(ids) == 2


@pytest.mark.parametrize("setting", ["data.reserve=5", "method.dense=batches"])
def test_a_young_setting_is_part_of_an_id_once_it_changes_something(setting):
    assert _plan("dapperfl", setting)[0].id != _plan("dapperfl")[0].id


@pytest.mark.parametrize("text", ["dapperfl,dapperfl:default", "a=fedavg,a=moon"])
def test_two_lines_that_could_not_be_told_apart_are_refused(text):
    with pytest.raises(ConfigError, match="--methods"):
        _plan(text)


def test_the_usual_folder_depends_on_shared_settings_only():
    def folder(text, *overrides):
        return replace(DEMO, overrides=overrides).folder(parse_variants(text))

    assert folder("fedavg") == folder("moon,fedavg{train.lr=0.5}")
    assert folder("fedavg") != folder("fedavg", "rounds=3")
