"""Configs and TOML are two spellings of one thing."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, make_dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dapperfl import methods, nets
from dapperfl.errors import ConfigError
from dapperfl.lab.config import (
    Config,
    DataConfig,
    EngineConfig,
    FleetConfig,
    MethodConfig,
    NetConfig,
    from_table,
    to_keys,
    to_toml,
)
from dapperfl.lab.deploy import DeployConfig
from dapperfl.lab.fields import show
from dapperfl.lab.resolve import resolve
from dapperfl.methods.base import Method
from dapperfl.methods.fedavg import FedAvg
from dapperfl.runtime.guard import GuardSettings
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.settings import Range, setting

share = st.floats(0, 1, exclude_min=True)
words = st.text(st.characters(blacklist_categories=["Cs"])).filter(lambda text: text != "none")
method_configs = st.one_of(
    st.builds(
        MethodConfig,
        name=st.just("dapperfl"),
        preset=st.sampled_from(sorted(methods.load("dapperfl").presets)),
        fields=st.fixed_dictionaries(
            {},
            optional={
                "gamma": st.floats(0, 1e6),
                "alpha_0": st.floats(0.5, 1),
                "scope": st.sampled_from(["inner", "all"]),
                "dar_power": st.sampled_from([1, 2]),
            },
        ),
    ),
    st.just(MethodConfig(name="fedavg")),
)
configs = st.builds(
    Config,
    seed=st.integers(0, 2**70),
    rounds=st.integers(1, 10**6),
    checkpoint_every=st.integers(1, 10**6),
    train=st.builds(
        TrainSettings,
        epochs=st.integers(1, 99),
        batch_size=st.integers(2, 4096),
        lr=st.floats(0, 1e3, exclude_min=True),
        momentum=st.floats(0, 1, exclude_max=True),
        weight_decay=st.floats(0, 1),
    ),
    method=method_configs,
    net=st.builds(
        NetConfig,
        name=st.one_of(st.sampled_from(nets.names()), st.just("package.module:factory")),
        width=st.none() | st.integers(1, 512),
    ),
    data=st.builds(
        DataConfig,
        benchmark=st.sampled_from(["minidigits", "folder", "package.module:load"]),
        root=st.none() | words | st.sampled_from(["2024", "true", "a/b.c"]),
        fraction=st.none() | share,
        allocation=st.none()
        | st.dictionaries(st.sampled_from(["mnist", "usps", "a-b"]), st.integers(0, 9), min_size=1),
        held_out=st.none() | st.sampled_from(["mnist", "2024"]),
        validation=st.floats(0, 1, exclude_max=True),
    ),
    fleet=st.builds(
        FleetConfig,
        devices=st.integers(1, 10**5),
        rhos=st.lists(st.floats(0, 1, exclude_max=True), min_size=1).map(tuple),
        participation=share,
    ),
    engine=st.builds(EngineConfig, device=st.sampled_from(["auto", "cpu", "cuda", "cuda:0"])),
    deploy=st.builds(
        DeployConfig,
        deadline=st.floats(0, 1e6, exclude_min=True),
        devices=st.none() | st.integers(1, 99),
        classes=st.just(()) | st.just(("cat", "2024", "true")),
        guard=st.builds(GuardSettings, clip=st.none() | st.floats(0, 9, exclude_min=True)),
    ),
)


@settings(max_examples=60, deadline=None)
@given(configs)
def test_reading_what_was_written_gives_an_equal_config(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_bytes(to_toml(config).encode())
    assert resolve(path) == config


@settings(max_examples=60, deadline=None)
@given(configs)
def test_setting_every_key_on_the_command_line_gives_an_equal_config(config):
    keys = to_keys(config)
    assume(config.data.root is None or config.data.root.isalnum())
    typed = {key: show(value) if isinstance(value, bool) else value for key, value in keys.items()}
    assert resolve(None, [f"{key}={value}" for key, value in typed.items()]) == config


def test_every_value_is_written_out_fields_of_the_method_included():
    keys = to_keys(Config())
    assert keys["method.gamma"] == 0.01
    assert keys["data.root"] == "none"
    assert keys["fleet.rhos"] == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert keys["rounds"] == Config().rounds
    assert len([key for key in keys if key.startswith("method.")]) == 2 + len(
        Config().method.fields
    )


def test_the_defaults_are_the_demo():
    config = Config()
    assert (config.method.name, config.method.preset) == ("dapperfl", "default")
    assert (config.net.name, config.net.width) == ("resnet10", 16)
    assert (config.data.benchmark, config.data.protocol) == ("minidigits", "fair")
    assert (config.fleet.devices, config.fleet.participation) == (10, 1.0)
    assert config.fleet.rhos == (0.0, 0.2, 0.4, 0.6, 0.8)


def test_the_data_table_holds_the_options_of_the_benchmark():
    config = from_table({"data": {"benchmark": "folder", "size": 64, "held_out": "sketch"}})
    assert config.data.options["size"] == 64
    assert to_keys(config)["data.size"] == 64
    assert to_keys(config)["data.test_fraction"] == 0.2
    assert "data.size" not in to_keys(Config())
    assert config != from_table({"data": {"benchmark": "folder", "held_out": "sketch"}})


def test_options_of_a_benchmark_from_outside_are_read_off_its_loader():
    outside = {"benchmark": "tests.lab.toy_world:load_sized"}
    assert from_table({"data": {**outside, "number": 32}}).data.options == {"number": 32}
    with pytest.raises(ConfigError, match=r'unknown key "data\.numbr"; did you mean "number"'):
        from_table({"data": {**outside, "numbr": 32}})
    by_position = {"benchmark": "tests.data.test_benchmarks:by_position", "number": 3}
    with pytest.raises(ConfigError, match=r"load\(root, \*, number=…\), to make it an option"):
        from_table({"data": by_position})


def test_a_method_config_holds_every_field_and_builds_its_method():
    config = MethodConfig(preset="paper", fields={"gamma": 1})
    method = config.build()
    assert method == methods.load("dapperfl").from_preset("paper", gamma=1.0)
    assert config.fields["recovery"] == "paper"
    assert isinstance(config.fields["gamma"], float)


def test_configs_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Config().rounds = 3  # type: ignore[misc]


def test_a_method_from_outside_is_loaded_by_its_path():
    config = from_table({"method": {"name": "dapperfl.methods.fedavg:FedAvg"}})
    assert type(config.method.build()) is methods.load("fedavg")


@pytest.mark.parametrize(
    ("hint", "told"),
    [(list[int], "a type that no config file can hold"), (int, "a whole number")],
)
def test_a_field_that_could_not_be_read_back_is_refused_before_a_run(monkeypatch, hint, told):
    own = make_dataclass("Own", [("kinds", hint, 0.5)], bases=(FedAvg,), frozen=True, kw_only=True)
    monkeypatch.setattr(methods, "load", lambda _: own)
    with pytest.raises(ConfigError, match=f"method.kinds = 0.5: expected {told}"):
        MethodConfig(name="own:Own")


def test_auto_takes_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert EngineConfig().torch_device() == "cpu"
    with pytest.raises(ConfigError, match=r'engine.device = "cuda": this machine has 0 CUDA'):
        EngineConfig(device="cuda").torch_device()


def test_a_gpu_is_taken_if_it_exists(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert EngineConfig().torch_device() == "cuda"
    assert EngineConfig(device="cuda:1").torch_device() == "cuda:1"
    with pytest.raises(ConfigError, match="this machine has 2 CUDA devices"):
        EngineConfig(device="cuda:2").torch_device()


@dataclass(frozen=True, kw_only=True)
class Careless(Method):
    """A method whose presets have mistakes."""

    softness: float = setting(0.5, "how soft", Range(0, at_most=1))

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "typo": {"softnes": 1},
        "word": {"softness": "x"},
        "hard": {"softness": 7.0},
    }


@pytest.mark.parametrize(
    ("preset", "why"),
    [
        (
            "typo",
            r'Careless.presets\["typo"\]: there is no field "softnes"; did you mean "softness"',
        ),
        ("word", r'Careless.presets\["word"\]: softness = "x": expected a finite number'),
        ("hard", r'Careless.presets\["hard"\]: softness = 7.0: expected at least 0 and at most 1'),
        ("none", 'unknown preset "none" of Careless'),
    ],
)
def test_a_mistake_in_a_preset_is_named(preset, why):
    with pytest.raises(ConfigError, match=why):
        MethodConfig(f"{__name__}:Careless", preset)
    assert MethodConfig(f"{__name__}:Careless").fields["softness"] == 0.5


def test_a_value_of_a_method_is_refused_by_its_key():
    with pytest.raises(ConfigError, match=r"method\.gamma = -1\.0: expected at least 0"):
        MethodConfig(fields={"gamma": -1})
