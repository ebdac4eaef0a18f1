"""The files in experiments/ are the paper's runs, and can be read without its data."""

from dataclasses import asdict
from pathlib import Path

import pytest

from dapperfl.lab.resolve import resolve

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = sorted(EXPERIMENTS.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_first_line_is_the_command_that_runs_it(path):
    resolve(path)
    assert path.read_text().splitlines()[0] == f"# dapperfl run experiments/{path.name}"


@pytest.mark.parametrize(("name", "net"), [("digits", "resnet10"), ("office_caltech", "resnet18")])
def test_the_paper_runs_have_the_papers_table(name, net):
    config = resolve(EXPERIMENTS / f"{name}.toml")
    assert (config.data.benchmark, config.data.protocol) == (name, "paper")
    assert (config.net.name, config.net.width) == (net, 64)
    assert config.rounds == 100
    assert asdict(config.train) == {
        "epochs": 5, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5,
        "shift": 0.0,
    }  # fmt: skip
    assert (config.fleet.devices, config.fleet.participation) == (10, 1.0)
    assert config.fleet.rhos == (0.0, 0.2, 0.4, 0.6, 0.8)
    method = config.method.fields
    assert config.method.preset == "paper"
    assert [method[key] for key in ("alpha_0", "alpha_min", "epsilon", "gamma")] == [
        0.9, 0.1, 0.2, 0.01,
    ]  # fmt: skip
    assert method["recovery"] == "paper"
