"""What a server knows of the pictures before any device has joined."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.errors import ConfigError
from dapperfl.lab.world import known_world
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
