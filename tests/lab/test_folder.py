"""Writing that cannot half happen, and folders that only one process writes to."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from dapperfl.errors import CheckpointError
from dapperfl.lab.folder import (
    RunFolder,
    explained,
    read_json,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space.*summary\.json"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["summary.json"]  # half a file would keep the disk full


def test_two_processes_can_write_the_same_file_at_once(tmp_path, monkeypatch):
    path = tmp_path / "compare.csv"
    sync, own = os.fsync, os.getpid()

    def another_comes_first(file):
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "getpid", lambda: own + 1)
        write_atomically(path, b"other")
        sync(file)

    monkeypatch.setattr(os, "fsync", another_comes_first)
    write_atomically(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["compare.csv"]


def test_what_a_killed_write_left_does_not_make_a_folder_used(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / ".config.toml.part").write_text("half")
    (tmp_path / ".lock").touch()
    assert not folder.is_used()
    (tmp_path / "notes.txt").touch()
    assert folder.is_used()


def test_json_is_strict_where_python_is_not(tmp_path):
    write_json(tmp_path / "a.json", {"x": float("nan"), 1: [float("inf"), 0.5], "é": (True, None)})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    expected = {"x": None, "1": [None, 0.5], "é": [True, None]}
    assert json.loads(text, parse_constant=pytest.fail) == expected
    assert read_json(tmp_path / "a.json") == expected


def test_tensors_come_back_bit_for_bit_with_their_facts(tmp_path):
    state = {"w": torch.randn(3, 2).t(), "n": torch.tensor(7)}
    write_tensors(tmp_path / "m.safetensors", state, {"kept": {"a": [0, 2]}, "rho": 0.8})
    found, facts = read_tensors(tmp_path / "m.safetensors")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert facts == {"kept": {"a": [0, 2]}, "rho": 0.8}


def test_a_weight_that_the_disk_has_changed_is_noticed(tmp_path):
    path = tmp_path / "m.safetensors"
    state = {"a": torch.rand(4, 3), "b": torch.tensor(3), "c": torch.ones(2, dtype=torch.bfloat16)}
    write_tensors(path, state, {"rho": 0.8})
    assert read_tensors(path)[1] == {"rho": 0.8}
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"m\.safetensors is damaged: .* SHA-256"):
        read_tensors(path)


def test_a_file_of_an_older_version_has_no_checksum(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(2)}, path, {"about": '{"rho": 0.8}'})
    assert read_tensors(path)[1] == {"rho": 0.8}


@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_missing_and_damaged_files_are_named(tmp_path, read):
    with pytest.raises(CheckpointError, match="thing is missing"):
        read(tmp_path / "thing")
    (tmp_path / "thing").write_bytes(b"\xff\x00{")
    with pytest.raises(CheckpointError, match="thing "):
        read(tmp_path / "thing")


def test_two_writers_cannot_hold_one_folder(tmp_path):
    folder = RunFolder(tmp_path / "new" / "run")
    with (
        folder.held(),
        pytest.raises(CheckpointError, match="another process is writing to"),
        RunFolder(folder.path).held(),
    ):
        pass
    with folder.held():  # it is free again
        assert folder.path.is_dir()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(CheckpointError, match="run is a file; choose another --out"):
        RunFolder(tmp_path / "run").is_used()


def test_a_full_disk_is_explained_with_the_way_to_go_on(tmp_path):
    with (
        pytest.raises(CheckpointError) as caught,
        explained(tmp_path),
    ):
        raise OSError(28, "No space left on device")
    assert str(caught.value) == (
        f"cannot write {tmp_path}: No space left on device; when that is solved, continue with "
        f"--out {tmp_path} --resume"
    )


@pytest.mark.parametrize(
    ("rho", "name"), [(0.8, "0.80"), (0.0, "0.00"), (-0.0, "0.00"), (0.125, "0.125")]
)
def test_levels_have_short_names_that_never_collide(tmp_path, rho, name):
    assert RunFolder(tmp_path).level(rho).name == f"rho-{name}.safetensors"
