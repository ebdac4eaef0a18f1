"""What tests with real processes share: certificates and pictures, made once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flower.deployment import assert_nothing_left

from dapperfl.flower.certificates import Certificates, make_certificates
from dapperfl.lab.config import Config, to_toml
from dapperfl.lab.resolve import resolve

SMALL = [
    "net.width=4",
    "train.epochs=1",
    "data.fraction=0.1",
    "fleet.rhos=[0.0, 0.2, 0.4, 0.6]",
    "fleet.devices=4",
    "engine.device=cpu",
]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certs")
    return make_certificates(folder, ["fl.example.org"], 4)


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """What another server and its devices have."""
    return make_certificates(tmp_path_factory.mktemp("strangers"), ["127.0.0.1"], 1)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for a deployment, which must leave no process behind."""
    yield tmp_path
    if os.path.isdir("/proc"):
        assert_nothing_left(tmp_path)


def write_config(path: Path, root: Path, *changes: str) -> Config:
    """Write the config of a small run with its pictures, and return it."""
    config = resolve(None, [*SMALL, f"data.root={root}", *changes])
    path.write_text(to_toml(config))
    return config
