"""What the tests of runs share: a config whose rounds take a fraction of a second."""

from collections.abc import Callable

import pytest

from dapperfl.lab.config import Config
from dapperfl.lab.resolve import resolve

TOY = [
    "data=tests.lab.toy_world:load",
    "net=convnet",
    "net.width=8",
    "fleet.devices=3",
    "fleet.rhos=[0,0.5,0.8]",
    "rounds=3",
    "train.epochs=2",
    "train.batch_size=8",
    "engine.device=cpu",
]


@pytest.fixture
def toy() -> Callable[..., Config]:
    """Return a function that makes the toy config with some settings changed."""
    return lambda *settings: resolve(None, [*TOY, *settings])
