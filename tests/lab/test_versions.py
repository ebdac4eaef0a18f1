"""Where a run's numbers come from."""

import platform
import subprocess

import torch

from dapperfl.lab import versions as module
from dapperfl.lab.versions import versions


def _git(folder, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_versions_of_what_matters_are_there():
    found = versions()
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()


def test_the_commit_is_that_of_the_checkout_and_marked_when_files_differ(tmp_path, monkeypatch):
    source = tmp_path / "src" / "dapperfl" / "lab" / "versions.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.setattr(module, "__file__", str(source))
    assert "commit" not in versions()
    _git(tmp_path, "init", "-q")
    assert "commit" not in versions()
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    _git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    assert versions()["commit"] == commit
    source.write_text("changed")
    assert versions()["commit"] == f"{commit}+"
