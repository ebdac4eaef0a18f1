"""What the tests of runs share: a config whose rounds take a fraction of a second."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dapperfl.lab.config import Config
from dapperfl.lab.experiment import opened, run
from dapperfl.lab.folder import RunFolder, read_json, read_tensors
from dapperfl.lab.records import load_records
from dapperfl.lab.resolve import resolve

TOY = [
    "data=tests.lab.toy_world:load",
    "net=convnet",
    "net.width=8",
    "fleet.devices=3",
    "fleet.rhos=[0,0.5,0.8]",
    "rounds=3",
    "train.epochs=2",
    "train.batch_size=8",
    "engine.device=cpu",
]


def assert_equal_runs(one: Path, other: Path) -> None:
    """Compare weights, small nets, accuracies, losses, costs and results bit for bit."""
    paths = [path.relative_to(one) for path in one.rglob("*.safetensors")]
    paths = [path for path in paths if path.parts[0] != "checkpoint"]
    assert len(paths) >= 2
    for path in paths:
        left, right = read_tensors(one / path)[0], read_tensors(other / path)[0]
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left), path
    ours, theirs = load_records(one), load_records(other)
    for field in ("accuracy", "loss", "costs"):
        assert [getattr(line, field) for line in ours] == [getattr(line, field) for line in theirs]
    left_summary, right_summary = (read_json(RunFolder(path).summary) for path in (one, other))
    for key in ("global_accuracy", "domain_accuracy", "costs", "levels"):
        assert left_summary[key] == right_summary[key]


def interrupt(config: Config, out: Path, after: int) -> None:
    """Run some rounds, then stop as if somebody had pressed Ctrl-C."""
    with opened(config, out) as experiment:
        for _ in itertools.islice(experiment.rounds(), after):
            pass


def edit(module: Path) -> None:
    """Change a module's file as its author would."""
    module.write_text(f"{module.read_text()}\n# Another idea.\n")


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file of a module of somebody's own with a method, a net and a benchmark."""
    file = tmp_path / "own" / "my_own_code.py"
    file.parent.mkdir()
    file.write_text(
        "from dapperfl.methods.fedavg import FedAvg as Mine\n"
        "from dapperfl.nets.convnet import convnet\n"
        "from tests.lab.toy_world import load\n"
    )
    monkeypatch.syspath_prepend(file.parent)
    yield file
    sys.modules.pop(file.stem, None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the toy run, done."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    run(resolve(None, TOY), out)
    return out


@pytest.fixture
def toy() -> Callable[..., Config]:
    """Return a function that makes the toy config with some settings changed."""
    return lambda *settings: resolve(None, [*TOY, *settings])
