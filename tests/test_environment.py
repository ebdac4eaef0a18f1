"""Processes find what their libraries should read, and what a user has set stays."""

import os
import platform
import subprocess
import sys

import pytest

from dapperfl import environment
from dapperfl.environment import QUEUES
from dapperfl.lab.config import EngineConfig
from dapperfl.lab.engine import choose
from dapperfl.runtime import children

KEPT = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    for name in (QUEUES, "GOMP_SPINCOUNT", *KEPT):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))


@pytest.fixture
def service(tmp_path):
    """As if NVIDIA's multi-process service listened."""
    (tmp_path / "control").touch()


def test_what_is_wanted_is_set():
    environment.prepare()
    assert (os.environ[QUEUES], os.environ["GOMP_SPINCOUNT"]) == ("32", "10000")


def test_what_a_user_set_stays(monkeypatch):
    monkeypatch.setenv(QUEUES, "2")
    environment.prepare()
    assert os.environ[QUEUES] == "2"
    assert environment.for_children()[QUEUES] == "2"


def test_children_find_it_though_this_process_has_not_set_it():
    assert environment.for_children(together=60)[QUEUES] == "32"
    assert QUEUES not in os.environ


@pytest.mark.usefixtures("service")
def test_by_way_of_the_service_queues_are_shared_out_by_who_knows_how_many_share():
    environment.prepare()
    assert QUEUES not in os.environ
    found = {together: environment.for_children(together).get(QUEUES) for together in (1, 6, 90)}
    assert found == {1: "32", 6: "16", 90: "2"}
    assert QUEUES not in environment.for_children()


@pytest.mark.usefixtures("service")
def test_by_way_of_the_service_a_users_number_stays(monkeypatch):
    monkeypatch.setenv(QUEUES, "5")
    assert environment.for_children(together=6)[QUEUES] == "5"


@pytest.mark.usefixtures("service")
def test_a_child_is_told(monkeypatch):
    told = {}
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **facts: told.update(facts["env"]))
    children.start_child("a:b", 0, together=3)
    assert told[QUEUES] == "32"


def test_an_engine_that_no_command_began_is_prepared():
    choose(EngineConfig(device="cpu"))
    assert os.environ[QUEUES] == "32"


def test_it_is_light():
    code = "import dapperfl.environment, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FAULTS = """
import resource
import torch
from dapperfl import environment

if {prepared}:
    environment.prepare()
    environment.prepare()


def step():
    blocks = [torch.ones(2**20) for _ in range(8)]  # of 4 MiB: 1,024 pages each


for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, prepared: bool, **environ: str) -> int:
    """Count the pages that the system hands out anew while blocks come and go."""
    code = FAULTS.format(prepared=prepared)
    told = {n: v for n, v in os.environ.items() if n not in KEPT} | environ
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc keeps what it likes")
def test_memory_that_every_step_wants_is_kept_from_step_to_step():
    assert page_faults(prepared=True) < 1000
    assert page_faults(prepared=False, **environment.for_children()) < 1000
    given_back = {KEPT[0]: "65536"}  # a user's wish stays
    assert page_faults(prepared=True, **given_back) > 10 * 8 * 1024
