"""Defaults < TOML < --set, and every way to get a key wrong."""

import logging
import tomllib
from pathlib import Path

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config, MethodConfig, to_toml
from dapperfl.lab.resolve import resolve, resolve_stored
from dapperfl.methods.dapperfl import DapperFL


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_without_anything_it_is_the_demo():
    assert resolve() == Config()


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(toml):
    path = toml("rounds = 7\nseed = 3\n[train]\nlr = 1\nepochs = 2\n")
    config = resolve(path, ["seed=4", "train.lr=.5"])
    assert (config.rounds, config.seed) == (7, 4)
    assert (config.train.lr, config.train.epochs) == (0.5, 2)
    assert config.train.batch_size == Config().train.batch_size


def test_of_two_settings_of_one_key_the_last_counts():
    assert resolve(None, ["rounds=2", "rounds=3"]).rounds == 3


def test_a_list_can_be_set():
    assert resolve(None, ["fleet.rhos=[0,0.5]"]).fleet.rhos == (0.0, 0.5)


@pytest.mark.parametrize(
    ("short", "get", "value"),
    [
        ("method=fedavg", lambda c: c.method.name, "fedavg"),
        ("net=convnet", lambda c: c.net.name, "convnet"),
        ("data.allocation.mnist=3", lambda c: c.data.allocation, {"mnist": 3}),
        (
            "data.allocation={b=1,a=2}",
            lambda c: list(c.data.allocation.items()),
            [("b", 1), ("a", 2)],
        ),
        ("data.held_out=sketch", lambda c: c.data.held_out, "sketch"),
        ("data.validation=.2", lambda c: c.data.validation, 0.2),
        ("data=tests.lab.toy_world:load", lambda c: c.data.benchmark, "tests.lab.toy_world:load"),
        ("engine=loop", lambda c: c.engine.name, "loop"),
    ],
)
def test_short_forms_stand_for_the_name_in_a_table(short, get, value):
    assert get(resolve(None, [short])) == value


def test_the_method_is_chosen_before_its_fields_whatever_the_order(toml):
    path = toml('[method]\nname = "fedavg"\n')
    config = resolve(path, ["method.gamma=0.5", "method=dapperfl"])
    assert config.method.name == "dapperfl"
    assert config.method.fields["gamma"] == 0.5


def test_another_method_drops_the_fields_of_the_old_one_and_says_so(toml, caplog):
    path = toml('[method]\npreset = "paper"\ngamma = 0.5\nscope = "inner"\n')
    with caplog.at_level(logging.INFO, logger="dapperfl"):
        config = resolve(path, ["method=fedavg"])
    assert config.method == MethodConfig(name="fedavg")
    assert (
        'method "fedavg" chosen: the file\'s method.gamma, method.preset, method.scope dropped'
        in caplog.text
    )


def test_another_preset_drops_the_fields_that_the_file_spells_out(toml, caplog):
    path = toml(to_toml(Config()))
    with caplog.at_level(logging.INFO, logger="dapperfl"):
        config = resolve(path, ["method.preset=paper", "method.gamma=0.5"])
    assert config.method == MethodConfig(preset="paper", fields={"gamma": 0.5})
    assert config.method.fields["scope"] == "all"
    assert 'preset "paper" chosen: the file\'s method.alpha_0,' in caplog.text


def test_naming_the_same_method_again_drops_nothing(toml, caplog):
    path = toml('[method]\nname = "dapperfl"\npreset = "paper"\ngamma = 0.5\n')
    with caplog.at_level(logging.INFO, logger="dapperfl"):
        config = resolve(path, ["method=dapperfl", "method.preset=paper"])
    assert config.method == MethodConfig(preset="paper", fields={"gamma": 0.5})
    assert caplog.text == ""


def test_the_fields_of_a_file_win_over_its_preset(toml):
    config = resolve(toml('[method]\npreset = "paper"\nscope = "inner"\n'))
    assert config.method.fields["scope"] == "inner"
    assert config.method.fields["recovery"] == "paper"


def test_what_a_run_folder_lacks_is_what_its_run_was_without(toml):
    path = toml('[method]\nname = "dapperfl"\naveraging = 0.25\n')
    stored = resolve_stored(path, ["rounds=7"])
    assert stored.rounds == 7
    method = stored.method.build()
    assert isinstance(method, DapperFL)
    assert (method.averaging, method.recalibrate_rounds, method.dense) == (0.25, 0, "full")
    assert method.gamma == DapperFL().gamma  # as old as the method
    assert resolve(path).method.build() == DapperFL(averaging=0.25)  # a file of somebody's own


def test_the_meta_table_of_a_run_folder_is_ignored(toml):
    assert resolve(toml('rounds = 3\n[meta]\ntorch = "2"\n')).rounds == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.gama=1"], 'unknown key "method.gama"; did you mean "gamma"?'),
        (["round=3"], 'unknown key "round"; did you mean "rounds"?'),
        (["lr=3"], 'unknown key "lr"; did you mean "train.lr"?'),
        (["gamma=3"], 'unknown key "gamma"; did you mean "method.gamma"?'),
        (["train.lrr=3"], 'unknown key "train.lrr"; did you mean "lr"?'),
        (
            ["zzz=3"],
            'unknown key "zzz"; there are checkpoint_every, data, deploy, engine, fleet, method,',
        ),
        (["fleet.x.y=3"], 'unknown key "fleet.x"'),
        (["rounds.x=3"], 'unknown key "rounds.x": rounds is not a table'),
        (["train=5"], "train = 5: train is a table; set one of its keys (train.…)"),
        (["train=5", "train.lr=1"], 'unknown key "train.lr": train is a value, not a table'),
        (["rounds"], "--set rounds: expected key=value"),
        (["=3"], "--set =3: expected key=value"),
        (["train.=3"], "--set train.=3: expected key=value"),
        (["method=dapper"], 'unknown method "dapper"; did you mean "dapperfl"?'),
        (["method=.mine:Mine"], 'cannot load ".mine:Mine": there is no package that it could be'),
        (["data.allocation.dark.x=1"], "data.allocation.dark = { x = 1 }: expected a whole number"),
        (["method.preset=papr"], 'unknown preset "papr"'),
        (["method.scope=outer"], 'method.scope = "outer": expected "auto", "inner" or "all"'),
        (["method.gamma=-1"], "gamma"),
        (["method.gamma=true"], "method.gamma = true: expected a finite number"),
        (["net=resnet"], 'net.name = "resnet" does not exist; did you mean "resnet'),
        (["data=minidigit"], 'data.benchmark = "minidigit" does not exist; did you mean "minidi'),
        (["data.protocol=papr"], 'data.protocol = "papr": expected "paper", "fair", "diri'),
        (["data.allocation=3"], "data.allocation = 3: expected a table, each value a whole nu"),
        (["data.allocation.a=b"], 'data.allocation.a = "b": expected a whole number'),
        (["data.alpha=1"], 'data.alpha is only used by protocol "dirichlet", but data.protocol'),
        (["data.size=8"], 'unknown key "data.size"'),
        (["data=folder", "data.sise=8"], 'unknown key "data.sise"; did you mean "size"?'),
        (["data=folder", "data.size=big"], 'data.size = "big": expected a whole number'),
        (["data.options.size=8"], 'unknown key "data.options"'),
        (["rounds=0"], "rounds = 0: expected at least 1"),
        (["rounds=true"], "rounds = true: expected a whole number"),
        (["rounds=2.0"], "rounds = 2.0: expected a whole number"),
        (["rounds=many"], 'rounds = "many": expected a whole number'),
        (["rounds="], 'rounds = "": expected a whole number'),
        (["seed=-1"], "seed = -1: expected at least 0"),
        (["train.lr=0"], "train.lr"),
        (["train.lr=nan"], "train.lr = nan: expected a finite number"),
        (["train.epochs=0"], "train.epochs"),
        (["fleet.devices=0"], "fleet.devices = 0: expected at least 1"),
        (["fleet.participation=0"], "fleet.participation = 0.0: expected above 0 and at most 1"),
        (["fleet.participation=1.1"], "fleet.participation = 1.1: expected above 0 and at most 1"),
        (["fleet.rhos=[0,1]"], "fleet.rhos = [0.0, 1.0]: expected at least 0 and below 1"),
        (["fleet.rhos=[]"], "fleet.rhos = []: expected at least one level"),
        (["fleet.rhos=0.5"], "fleet.rhos = 0.5: expected a list, each item a finite number"),
        (["net.width=0"], "net.width = 0: expected at least 1"),
        (
            ["engine=fast"],
            'engine.name = "fast": expected "auto", "loop", "graphs" or "cpu"',
        ),
        (["engine.workers=0"], "engine.workers = 0: expected at least 1"),
        (
            ["engine.precision=fp16"],
            'engine.precision = "fp16": expected "fp32", "tf32" or "bf16"',
        ),
        (
            ["engine.device=tpu"],
            'engine.device = "tpu": expected "auto", "cpu", "cuda" or "cuda:N"',
        ),
    ],
)
def test_a_wrong_setting_is_one_clear_error(settings, message):
    with pytest.raises(ConfigError) as caught:
        resolve(None, settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "fedavg"\n', "in a file method is a table; write [method] and below it name ="),
        ('data = "minidigits"\n', "write [data] and below it benchmark = "),
        ("train = 3\n", "train = 3: train is a table"),
        ("rounds = 3\nrounds = 4\n", "config.toml is not valid TOML"),
        ("seed = 1\nrounds = \n", "line 2"),
        ("[method]\nname = 3\n", "method.name = 3: expected a string"),
        ("[train]\nlr = inf\n", "train.lr = inf: expected a finite number"),
        ("[[fleet]]\ndevices = 3\n", "fleet is a table"),
        ("[method.gamma]\nx = 3\n", "method.gamma = "),
    ],
)
def test_a_wrong_file_is_one_clear_error(toml, text, message):
    with pytest.raises(ConfigError) as caught:
        resolve(toml(text))
    assert message in str(caught.value)


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path):
    (tmp_path / "windows.toml").write_bytes("seed = 7\n".encode("utf-8-sig"))
    assert resolve(tmp_path / "windows.toml").seed == 7


def test_a_missing_file_a_folder_and_bytes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config file .*none.toml"):
        resolve(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"is a folder, not a config file; .*--resume"):
        resolve(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read the config file .*bytes.toml"):
        resolve(tmp_path / "bytes.toml")


def test_the_demo_file_is_the_default_config_and_says_how_to_run_it():
    path = Path(__file__).parents[2] / "experiments" / "minidigits.toml"
    assert resolve(path) == Config()
    assert path.read_text().splitlines()[0] == "# dapperfl run experiments/minidigits.toml"
    assert tomllib.loads(path.read_text())["train"] == tomllib.loads(to_toml(Config()))["train"]
