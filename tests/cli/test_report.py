"""`dapperfl report` as a user meets it."""

import pytest
from tests.lab.made_runs import write_run
from typer.testing import CliRunner

from dapperfl.cli import app


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, ["report", *arguments], prog_name="dapperfl")


def test_the_path_of_the_report_is_printed(cli, tmp_path):
    write_run(tmp_path / "runs" / "a")
    done = cli("runs")
    assert done.exit_code == 0, done.stderr
    page = tmp_path / "runs" / "report.html"
    assert done.stdout == f"report: {page}\n"
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_several_folders_and_a_chosen_file(cli, tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "method=fedavg")
    done = cli("a", "b", "--out", "mine.html")
    assert done.stdout == "report: mine.html\n"
    text = (tmp_path / "mine.html").read_text()
    assert "dapperfl:default" in text
    assert "fedavg:default" in text


def test_a_folder_without_runs_is_one_line_and_a_code(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    done = cli("empty")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: empty holds no run; name a run folder")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "empty" / "report.html").exists()


def test_a_folder_must_be_named(cli):
    assert cli().exit_code == 2
