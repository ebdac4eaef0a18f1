"""What tests of several commands share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer.testing
from click.testing import Result
from tests.lab.compare.made_up import Scheduler

from dapperfl.cli import app


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    return Scheduler(monkeypatch)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call a command as from an empty folder and a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("DAPPERFL_DEBUG", raising=False)
    runner = typer.testing.CliRunner()
    return lambda *arguments: runner.invoke(app, list(arguments), prog_name="dapperfl")
