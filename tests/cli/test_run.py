"""The command line: what it prints, and with which code it ends."""

import io
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing
from tests.lab.conftest import TOY

from dapperfl import __version__, environment, methods
from dapperfl.cli import app, main
from dapperfl.lab import experiment
from dapperfl.lab.config import Config
from dapperfl.lab.loading import load_run
from dapperfl.lab.records import load_records
from dapperfl.lab.resolve import resolve

ROOT = Path(__file__).parents[2]
SMALL = [part for each in TOY for part in ("--set", each)]


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAPPERFL_DEBUG", raising=False)
    runner = typer.testing.CliRunner()
    return lambda *arguments: runner.invoke(app, list(arguments), prog_name="dapperfl")


def _error(result, code: int) -> str:
    """Return the one line of an error."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    lines: list[str] = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_version_and_help(cli):
    assert cli("--version").stdout == f"dapperfl {__version__}\n"
    text = cli("--help").output
    assert all(word in text for word in ("run", "list", "show-config"))
    assert "--resume" in re.sub(r"\x1b\[[0-9;]*m", "", cli("run", "--help").output)


def test_lists_name_what_there_is(cli):
    assert cli("list", "methods").stdout.split() == methods.names()
    assert "resnet10" in cli("list", "nets").stdout.split()
    assert "minidigits" in cli("list", "benchmarks").stdout.split()
    assert cli("list", "planets").exit_code == 2


def test_a_verbose_list_shows_every_field_with_default_presets_and_help(cli):
    text = cli("list", "methods", "--verbose").stdout
    assert 'recovery = "gated", "paper" in paper, "zero" in release' in text
    assert "fusion factor of the first round" in text


def test_show_config_prints_toml_that_reads_back(cli, tmp_path):
    result = cli("show-config", "--set", "rounds=5", "--set", "method=fedavg")
    (tmp_path / "shown.toml").write_text(result.stdout)
    config = resolve(tmp_path / "shown.toml")
    assert (config.rounds, config.method.name) == (5, "fedavg")
    assert config.net == Config().net


def test_a_dropped_field_is_mentioned_beside_the_output(cli, tmp_path):
    (tmp_path / "c.toml").write_text("[method]\ngamma = 0.5\n")
    result = cli("show-config", "c.toml", "--set", "method=fedavg")
    assert result.exit_code == 0
    assert result.stderr == 'note: method "fedavg" chosen: the file\'s method.gamma dropped\n'
    assert "gamma" not in result.stdout


def test_a_run_prints_plain_lines_and_leaves_a_folder_to_load(cli):
    result = cli("run", *SMALL, "--out", "my [bold]run")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    rounds = [line for line in result.stdout.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in rounds] == ["1/3", "2/3", "3/3"]
    assert "global (mean)" in result.stdout
    assert "net = dapperfl.load_run('my [bold]run')" in result.stdout
    assert "on cpu, run folder my [bold]run" in result.stdout
    assert load_run("my [bold]run", rho=0.8).training is False


def test_without_out_the_folder_is_new_and_printed(cli, tmp_path):
    result = cli("run", *SMALL, "--set", "rounds=1")
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"dapperfl-tests.lab.toy_world-load-seed0-\d{8}-\d{6}", folder.name)
    assert f"run folder: runs/{folder.name}" in result.stdout


def test_resume_takes_the_config_from_the_folder(cli):
    assert cli("run", *SMALL, "--set", "rounds=1", "--out", "a").exit_code == 0
    result = cli("run", "--out", "a", "--resume", "--set", "rounds=2")
    assert result.exit_code == 0
    assert "continued after round 1" in result.stdout
    assert len(load_records(Path("a"))) == 2


def test_resuming_a_finished_run_says_so(cli):
    cli("run", *SMALL, "--set", "rounds=1", "--out", "a")
    result = cli("run", "--out", "a", "--resume")
    assert result.exit_code == 0
    assert "a is finished; for more rounds: --resume --set rounds=2" in result.stdout


def test_resume_without_a_run_starts_one_and_says_so(cli):
    result = cli("run", *SMALL, "--set", "rounds=1", "--out", "a", "--resume")
    assert result.exit_code == 0
    assert "note: there is no run in a yet: starting from round 1" in result.stderr


def test_errors_of_the_config_are_one_line_and_code_2(cli, tmp_path):
    (tmp_path / "bad.toml").write_text("rounds = 1\nseed = \n")
    (tmp_path / "flat.toml").write_text('method = "fedavg"\n')
    for arguments, message in [
        (["--set", "method.gama=1"], 'unknown key "method.gama"; did you mean "gamma"?'),
        (["--set", "rounds=0"], "rounds = 0: expected at least 1"),
        (["--set", "rounds"], "expected key=value"),
        (["none.toml"], "there is no config file none.toml"),
        # What a shell makes of --set data.allocation={photo=3,print=1}.
        (["--set", "data.allocation=photo=3", "data.allocation=print=1"], "in quotes if there are"),
        (["."], "is a folder, not a config file"),
        (["bad.toml"], "line 2"),
        (["flat.toml"], "write [method] and below it name"),
        (["--resume"], "--resume needs the run folder to continue: --out DIR"),
        (["--set", "data=no.such.module:load"], "No module named 'no'"),
        (["--set", "data=tests.lab.toy_world:lod"], "lod"),
        ([*SMALL, "--set", "net=no.such.module:net"], "no.such.module:net"),
        (["--set", "engine.device=cuda:99"], 'engine.device = "cuda:99": this machine has'),
    ]:
        assert message in _error(cli("run", *arguments), 2)
    assert not (tmp_path / "runs").exists()


def test_a_changed_key_on_resume_is_code_2_and_names_the_key(cli):
    cli("run", *SMALL, "--set", "rounds=1", "--out", "a")
    result = cli("run", "--out", "a", "--resume", "--set", "rounds=2", "--set", "train.lr=1")
    assert "train.lr = 1.0, but the run was started with 0.05" in _error(result, 2)


def test_other_errors_are_one_line_and_code_1(cli, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert "full is not empty" in _error(cli("run", *SMALL, "--out", "full"), 1)
    budget = [*SMALL, "--set", "fleet.rhos=[0.999]", "--out", "b"]
    assert "smallest submodel" in _error(cli("run", *budget), 1)


def test_a_full_disk_is_one_line_and_the_run_can_go_on(cli, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "save_checkpoint", full)
        message = _error(cli("run", *SMALL, "--out", "a"), 1)
    assert "No space left on device" in message
    assert "--out a --resume" in message
    assert cli("run", "--out", "a", "--resume").exit_code == 0


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError])
def test_too_little_memory_is_one_line_and_a_mistake_in_the_code_is_not(cli, monkeypatch, kind):
    def fail(config):
        raise kind(words)

    monkeypatch.setattr(experiment, "build", fail)
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
    said = _error(cli("run", *SMALL, "--out", "r"), 1)
    assert said.startswith("error: too little memory: DefaultCPUAllocator: can't allocate memory")
    if kind is RuntimeError:
        words = "a mistake"
        assert isinstance(cli("run", *SMALL, "--out", "r").exception, RuntimeError)


def test_names_that_the_terminal_cannot_show_are_escaped(monkeypatch):
    monkeypatch.setattr(environment, "prepare", lambda: None)
    shown = io.BytesIO()
    screen = io.TextIOWrapper(shown, "latin-1")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "argv", ["dapperfl", "show-config", "--set", "data.root=a–ö"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    screen.flush()
    assert r'root = "a\u2013ö"' in shown.getvalue().decode("latin-1")


def test_a_name_of_bytes_that_are_no_text_is_one_line(cli):
    result = cli("run", *SMALL, "--set", "data.root=gr\udcf6", "--out", "r")
    said = r"error: a name has bytes that are no text here ('\udcf6'); use another name"
    assert _error(result, 1) == said


def test_debugging_shows_the_traceback(cli, monkeypatch):
    monkeypatch.setenv("DAPPERFL_DEBUG", "1")
    result = cli("run", "--set", "rounds=0")
    assert type(result.exception).__name__ == "ConfigError"


def test_ctrl_c_says_how_to_continue(cli, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(experiment, "save_checkpoint", interrupted)
        result = cli("run", *SMALL, "--out", "my run")
    assert result.exit_code == 130
    *notes, last = result.stderr.splitlines()
    assert last == "interrupted; continue with: dapperfl run --out 'my run' --resume"
    # What is said once a process may have been said in another test.
    assert all(note.startswith("warning: no batch or group norm") for note in notes)
    assert cli("run", "--out", "my run", "--resume").exit_code == 0


def test_ctrl_c_before_the_run_began_promises_nothing(cli, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "build", interrupted)
    result = cli("run", *SMALL, "--out", "a")
    assert result.exit_code == 130
    assert result.stderr == "interrupted; nothing was written\n"


def test_the_log_is_as_before_once_a_command_is_done(cli):
    log = logging.getLogger("dapperfl")
    before = (log.level, list(log.handlers))
    cli("show-config")
    assert (log.level, list(log.handlers)) == before


def test_the_module_runs_and_a_real_ctrl_c_ends_it_with_130(tmp_path):
    command = [sys.executable, "-m", "dapperfl", "run", *SMALL, "--set", "rounds=100000"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "a")],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round 2/"):
                break
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("interrupted; continue with: dapperfl run --out ")
    assert "Traceback" not in errors
    assert len(load_records(tmp_path / "a")) >= 2


def test_a_reader_that_goes_away_ends_the_run_quietly(tmp_path):
    command = [sys.executable, "-m", "dapperfl", "list", "methods", "--verbose"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 1
    assert errors == ""
