"""Processes find what their libraries should read, and what a user has set stays."""

import os
import subprocess
import sys

import pytest

from dapperfl import environment
from dapperfl.lab.config import EngineConfig
from dapperfl.lab.engine import choose


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    for name in environment.WANTED:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


def test_what_is_wanted_is_set():
    environment.prepare()
    assert os.environ.items() >= environment.WANTED.items()


def test_what_a_user_set_stays(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2")
    environment.prepare()
    assert environment.for_children()["CUDA_DEVICE_MAX_CONNECTIONS"] == "2"


def test_children_find_it_though_this_process_has_not_set_it():
    assert environment.for_children().items() >= environment.WANTED.items()


def test_an_engine_that_no_command_began_is_prepared():
    choose(EngineConfig(device="cpu"))
    assert os.environ.items() >= environment.WANTED.items()


def test_it_is_light():
    code = "import dapperfl.environment, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
