"""`dapperfl tune` as a user meets it."""

import sys

import pytest
import typer.testing
from tests.lab.conftest import TOY
from tests.lab.tuning.made_up import MadeUp

from dapperfl.cli import app
from dapperfl.lab.resolve import resolve


@pytest.fixture
def cli(call, monkeypatch):
    """Call the command in an empty folder, with a formula in the place of training."""
    monkeypatch.setattr(MadeUp, "judged", [], raising=False)
    monkeypatch.setattr("dapperfl.lab.tuning.hands.Judge", MadeUp)
    return lambda *arguments: call("tune", *arguments)


@pytest.mark.slow
def test_a_search_prints_its_trials_its_table_and_its_files(cli, tmp_path):
    arguments = [
        "--set",
        "method.gamma=1000",
        "--set",
        "rounds=2",
        "--trials",
        "3",
        "--sampler",
        "tpe",
    ]
    done = cli(*arguments, "--space", "method.gamma=log(1e-4,1)", "--seeds", "0,1", "--out", "t")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == [
        "start",
        "trial 1/3",
        "trial 2/3",
        "trial 3/3",
    ]
    assert any(line.startswith("│ mean") for line in lines)
    for name in ("trials.csv", "importance.png", "slices.png", "best.toml"):
        assert f"wrote t/{name}" in lines
        assert (tmp_path / "t" / name).exists()
    assert lines[-1] == "to train with the best values: dapperfl run t/best.toml"
    assert done.stderr.startswith("note: data.validation is 0: in the trials, devices keep 0.2")
    best = resolve(tmp_path / "t" / "best.toml")
    assert 1e-4 <= best.method.fields["gamma"] <= 1
    assert best.rounds == 2


def test_the_same_command_goes_on_in_its_usual_folder(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("dapperfl.lab.tuning.search.draw_results", lambda *_: None)
    command = ["--space", "method.gamma=log(1e-4,1)", "--set", "rounds=1", "--sampler", "tpe"]
    assert cli(*command, "--trials", "1").exit_code == 0
    judged = len(MadeUp.judged)
    again = cli(*command, "--trials", "2")
    assert again.exit_code == 0, again.output
    assert len(MadeUp.judged) == judged + 1
    assert (tmp_path / "runs" / "tune-dapperfl-minidigits" / "trials.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--space", "method.gama=0..1"], 'unknown key "method.gama"; did you mean "gamma"?'),
        (["--space", "method.gamma=-1..1"], "gamma = -1.0: expected at least 0"),
        (["--set", "method=fedavg"], 'no usual space for method "fedavg"'),
        (["--seeds", "one"], "--seeds one: expected whole numbers"),
    ],
)
def test_what_is_wrong_is_one_line_and_code_2(cli, tmp_path, arguments, words):
    done = cli(*arguments)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_numbers_below_one_and_unknown_samplers_are_refused(cli):
    assert cli("--trials", "0").exit_code == 2
    assert cli("--workers", "0").exit_code == 2
    assert cli("--sampler", "grid").exit_code == 2


def test_without_optuna_the_command_says_what_to_install(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = cli()
    assert done.exit_code == 2
    assert 'run: pip install "dapperfl[tune]"' in done.stderr


@pytest.mark.slow
def test_the_best_config_can_be_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = typer.testing.CliRunner()
    small = [part for each in [*TOY, "rounds=2", "net.width=4"] for part in ("--set", each)]
    done = runner.invoke(app, ["tune", *small, "--trials", "1", "--out", "t"])
    assert done.exit_code == 0, done.output
    done = runner.invoke(app, ["run", "t/best.toml", "--out", "best"])
    assert done.exit_code == 0, done.output


def test_an_empty_list_of_seeds_is_refused(cli, tmp_path):
    done = cli("--seeds", "", "--trials", "1", "--out", "t")
    assert done.exit_code == 2
    assert "expected whole numbers, such as 0,1,2" in done.stderr
    assert MadeUp.judged == []
