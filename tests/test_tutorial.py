"""The tutorial and the notebook: what they tell people to do is done here, on smaller settings."""

import base64
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from dapperfl.cli import app

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
NOTEBOOK = ROOT / "docs/notebook.ipynb"
# The last word on a key is the one that counts, so these go behind what the tutorial says.
TINY = [
    "net.width=4",
    "fleet.devices=4",
    "fleet.rhos=[0,0.4]",
    "data.fraction=0.04",
    "train.epochs=1",
    "train.batch_size=16",
    "engine.device=cpu",
]


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TUTORIAL, re.DOTALL)


def _commands() -> list[list[str]]:
    lines = [line for block in _blocks("console") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("dapperfl ")]


def _smaller(command: list[str]) -> list[str]:
    """Return a command of the tutorial with settings that take seconds."""
    if command[0] in ("report", "show-config"):
        return command
    if "--resume" in command:
        return [each.replace("rounds=12", "rounds=3") for each in command]
    small = list(command)
    if "--trials" in command:
        small[command.index("--trials") + 1] = "2"
    tiny = [*TINY, f"rounds={2 if command[0] == 'run' else 1}"]
    return small + [part for each in tiny for part in ("--set", each)]


def test_the_tutorial_shows_every_step():
    verbs = [command[0] for command in _commands()]
    assert {"run", "show-config", "compare", "report", "tune"} == set(verbs)
    text = (ROOT / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    (named,) = re.findall(r'pip install .*"\.\[(.*)\]"', TUTORIAL)
    assert set(named.split(",")) <= extras.keys()


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path, monkeypatch, minidigits_root):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPPERFL_DATA", str(minidigits_root))
    for block in _blocks("toml"):
        name = block.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    runner = typer.testing.CliRunner()
    for command in _commands():
        done = runner.invoke(app, _smaller(command), prog_name="dapperfl")
        assert done.exit_code == 0, (command, done.output)
    for path in (
        "runs/demo/summary.json",
        "runs/mine/levels/rho-0.40.safetensors",
        "runs/table/report.html",
        "runs/tuned/best.toml",
        "runs/tuned/importance.png",
        "runs/tuned/slices.png",
        "runs/wide/trials.csv",
        "runs/best/summary.json",
    ):
        assert (tmp_path / path).exists(), path
    assert list((tmp_path / "runs/watched/tensorboard").iterdir())
    assert list((tmp_path / "runs/table").glob("*.tex"))


def _cells() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_small_and_shows_what_it_draws():
    assert NOTEBOOK.stat().st_size < 100_000
    outputs = [output for cell in _cells() for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in _cells())
    assert not any(output["output_type"] == "error" for output in outputs)
    pictures = [
        each["data"]["image/png"] for each in outputs if "image/png" in each.get("data", {})
    ]
    assert pictures
    assert all(base64.b64decode(each).startswith(b"\x89PNG") for each in pictures)
    first = "".join(_cells()[0]["source"]).splitlines()
    assert len([line for line in first if line.strip()]) <= 10


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch, minidigits_root):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPPERFL_DATA", str(minidigits_root))
    plt.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(_cells(), start=1):
        exec(compile("".join(cell["source"]), f"<cell {number}>", "exec"), names)
    assert plt.get_fignums()
    (axes, *_) = plt.figure(plt.get_fignums()[0]).axes
    rounds: Any = axes.lines[0].get_xdata()
    assert list(rounds) == list(range(1, names["config"].rounds + 1))
    plt.close("all")
    last = names["records"][-1]
    assert last.mean_accuracy > 20  # chance is 10
