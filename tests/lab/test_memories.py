"""Runs whose clients remember, with what they remember on disk."""

import itertools
from pathlib import Path

import pytest

from dapperfl.errors import CheckpointError
from dapperfl.lab.experiment import opened, run
from tests.lab.conftest import assert_equal_runs


@pytest.mark.parametrize("method", ["moon", "fedsr"])
def test_a_run_with_memories_on_disk_is_the_one_without_and_can_be_resumed(toy, tmp_path, method):
    settings = (f"method={method}", "fleet.participation=0.7", "fleet.rhos=[0.0]")
    run(toy(*settings), tmp_path / "ram")
    on_disk = toy(*settings, "engine.memory_limit_mb=0", "checkpoint_every=2")
    with opened(on_disk, tmp_path / "disk") as experiment:
        for _ in itertools.islice(experiment.rounds(), 3):
            pass
    run(on_disk, tmp_path / "disk", resume=True)
    assert_equal_runs(tmp_path / "ram", tmp_path / "disk")
    memory = tmp_path / "disk" / "checkpoint" / "memory"
    assert len(list(memory.glob("*.safetensors"))) >= 2


def test_a_disk_that_is_full_within_a_round_is_one_line(toy, tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device", str(self))

    config = toy("method=moon", "engine.memory_limit_mb=0")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(CheckpointError, match=r"memory/.*No space left on device; .*--resume"):
            run(config, tmp_path / "run")
    run(config, tmp_path / "run", resume=True)
    run(config, tmp_path / "whole")
    assert_equal_runs(tmp_path / "whole", tmp_path / "run")
