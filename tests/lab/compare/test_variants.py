"""What people type after --methods and --seeds."""

import sys

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.variants import Variant, check_settings, parse_seeds, parse_variants


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("fedavg", Variant("fedavg")),
        (" dapperfl:paper ", Variant("dapperfl", "paper")),
        ("my.module:Mine", Variant("my.module:Mine")),
        ("colorsys:Mine", Variant("colorsys:Mine")),  # any module that can be imported
        ("colorsys:Mine:fast", Variant("colorsys:Mine", "fast")),
        ("fedavgg:paper", Variant("fedavgg", "paper")),  # a slip, to be told as one
        ("my.module:Mine:fast", Variant("my.module:Mine", "fast")),
        ("moon{method.mu=5}", Variant("moon", None, ("method.mu=5",))),
        (
            "w/o DAR=dapperfl:paper{method.gamma=0, fleet.rhos=[0,0.5]}",
            Variant("dapperfl", "paper", ("method.gamma=0", "fleet.rhos=[0,0.5]"), "w/o DAR"),
        ),
    ],
)
def test_a_variant_is_read(text, variant):
    assert parse_variants(text) == [variant]


def test_commas_in_brackets_separate_nothing():
    found = parse_variants("a,b{x=[1,2],y=3},c:d")
    assert [each.name for each in found] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "text",
    ["", "a,,b", "a:b:c", "a{x=1", "a}x=1{", "a{x=1}b", "=a", "a{x}", "a{}", "a:",
     "a{seed=1}", "a{method=b}", "a{method.preset=paper}"],
)  # fmt: skip
def test_what_is_no_variant_is_refused(text):
    with pytest.raises(ConfigError):
        parse_variants(text)


def test_the_files_preset_holds_for_a_bare_name_of_its_method(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[method]\nname = "dapperfl"\npreset = "paper"\ngamma = 0.5\n')
    config = Variant("dapperfl").resolve(path)
    assert (config.method.preset, config.method.fields["gamma"]) == ("paper", 0.5)
    other = Variant("dapperfl", "default").resolve(path)
    assert (other.method.preset, other.method.fields["gamma"]) == ("default", 0.01)
    assert Variant("fedavg").resolve(path).method.preset == "default"


def test_own_settings_come_after_those_of_all():
    variant = Variant("fedavg", settings=("train.lr=0.3",))
    assert variant.resolve(None, ["train.lr=0.1", "rounds=7"]).train.lr == 0.3
    assert variant.resolve(None, ["rounds=7"]).rounds == 7


def test_seeds():
    assert parse_seeds("2,0") == [2, 0]
    for text in ("", "a", "1,1", "-1"):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(text)


def test_a_seed_for_all_is_refused_with_the_option_to_use():
    with pytest.raises(ConfigError, match="seed is chosen by --seeds"):
        check_settings(["seed=3"], "--set")


def test_the_main_program_is_no_module_of_somebodys_own(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as in a plain script
    assert parse_variants("__main__:X") == [Variant("__main__", "X")]
