"""What a server knows of the pictures before any device has joined."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.errors import ConfigError
from dapperfl.lab.resolve import resolve
from dapperfl.lab.world import known_world, without_effect
from tests.lab.toy_world import load


def _cut(examples: Examples, where: tuple[slice, ...]) -> Examples:
    images: Tensor = examples.images[where].contiguous()
    return Examples(images, examples.labels)


def _every(where: tuple[slice, ...]) -> Benchmark:
    whole = load(None)
    domains = {
        name: Domain(_cut(each.train, where), _cut(each.test, where), each.official_size)
        for name, each in whole.domains.items()
    }
    return replace(whole, domains=domains)


def load_wide(root: Path | None) -> Benchmark:
    """Make the toy benchmark, with pictures that are no squares."""
    return _every((slice(None), slice(None), slice(4)))


def load_grey(root: Path | None) -> Benchmark:
    """Make the toy benchmark, with pictures of one channel."""
    return replace(_every((slice(None), slice(1))), mean=(0.4,), std=(0.2,))


OWN = ("deploy.own_folders=true", "deploy.devices=1")


@pytest.mark.parametrize(("name", "shape"), [("wide", "3 × 4 × 8"), ("grey", "1 × 8 × 8")])
def test_pictures_that_no_device_could_bring_are_refused(toy, name, shape):
    config = toy(f"data=tests.lab.test_world:load_{name}")
    known_world(config)  # a benchmark that is dealt out may look like anything
    with pytest.raises(ConfigError, match=f"but those of toy are {shape}; use a benchmark"):
        known_world(toy(f"data=tests.lab.test_world:load_{name}", *OWN))


def test_pictures_that_devices_can_bring_are_what_a_server_tests_on(toy):
    world = known_world(toy(*OWN))
    assert world.shape == (3, 8, 8)
    assert world.test.keys() == {"dark", "light"}


@pytest.mark.parametrize("own", ["deploy.own_folders=true", 'deploy.classes=["red","green"]'])
@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("data.held_out=dark", "let none join with that domain"),
        ("data.validation=0.2", "dapperfl join --keep-aside"),
        ("data.reserve=5", "the server has none to keep from them"),
    ],
)
def test_pictures_that_devices_own_are_not_kept_from_them(toy, own, setting, advice):
    known_world(toy(setting))  # a benchmark that is dealt out
    with pytest.raises(ConfigError, match=f"{setting.partition('=')[0]} = .*; .*{advice}"):
        known_world(toy(own, setting))


def test_settings_about_dealing_out_are_named_where_nothing_is_dealt_out(toy):
    more = ("data.fraction=0.5", "data.allocation={dark=2,light=1}")
    classes = 'deploy.classes=["red","green"]'
    dealt = ["data.fraction", "data.allocation.dark", "data.allocation.light", "fleet.rhos"]
    assert without_effect(toy(*more)) == []
    assert without_effect(toy(*more, *OWN)) == dealt
    assert without_effect(toy(*more, classes)) == ["data.benchmark", *dealt]
    assert without_effect(resolve(None, [classes])) == []
