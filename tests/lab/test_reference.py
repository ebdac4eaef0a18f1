"""The documentation of keys cannot drift from the keys."""

from pathlib import Path

from dapperfl import methods
from dapperfl.lab.config import Config, to_keys
from dapperfl.lab.reference import (
    common_keys,
    config_keys,
    describe,
    markdown,
    method_keys,
    names,
    own_keys,
)

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_dataclasses_say():
    assert PAGE.read_text() == markdown(), (
        "write it anew: python -m dapperfl.lab.reference > docs/configuration.md"
    )


def test_every_key_is_documented_with_its_default_and_a_line_of_help():
    page = markdown()
    documented = {
        f"{table}.{key.name}" if table else key.name
        for table, keys in config_keys().items()
        for key in keys
    }
    documented |= {f"method.{key.name}" for key in method_keys("dapperfl")}
    assert documented == to_keys(Config()).keys()
    for keys in config_keys().values():
        assert all(key.help and f"`{key.name}`" in page for key in keys)


def test_the_fields_of_every_method_have_help():
    for name in methods.names():
        assert all(key.help for key in method_keys(name)), name


def test_what_every_method_has_is_on_the_page_once_unless_its_default_is_another():
    page, common = markdown(), common_keys()
    assert len(common) == 4
    for name in methods.names():
        own = own_keys(name)
        again = [key for key in common if key not in method_keys(name)]
        assert len(own) == len(method_keys(name)) - len(common) + len(again), name
        _, _, section = page.partition(f'with `name = "{name}"`')
        section, _, _ = section.partition("\n## ")
        assert all(f"| `{key.name}` |" in section for key in own), name
    assert not {key.name for key in common} & {key.name for key in own_keys("fedavg")}
    assert {key.name for key in common} <= {key.name for key in own_keys("dapperfl")}


def test_a_method_is_described_with_what_its_presets_change():
    lines = list(describe("dapperfl"))
    assert lines[0].startswith("DapperFL: Model Fusion Pruning")
    assert 'recovery = "gated", "paper" in paper, "zero" in release' in lines
    assert any(
        "fusion factor of the first round" in line and "at least 0" in line for line in lines
    )


def test_names_are_those_of_the_rooms():
    assert "fedavg" in names("methods")
    assert "resnet10" in names("nets")
    assert "minidigits" in names("benchmarks")
