"""Recorded numbers: three rounds of every method on minidigits, as they were when reviewed.

A change of any number here must be meant. To record anew, all methods or some, run

    python -m tests.contracts.test_golden --write [METHOD ...]

and look at the difference of `tests/golden/` before it is committed.

Costs must agree exactly; losses to a part in a thousand, the distance that kernels moved to ten per
cent, accuracies to five points (three pictures). Other convolution algorithms, which round
differently, change losses by less than 1e-4 and distances by less than 3 %.
"""

import argparse
import json
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from dapperfl import methods, nets
from dapperfl.core.messages import Device
from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark, Federation
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.simulator import Simulator

FOLDER = Path(__file__).parents[1] / "golden"
COMMAND = "python -m tests.contracts.test_golden --write"
SEED = 0
RHOS = (0.0, 0.2, 0.4, 0.6)  # one device a domain
# Gently: a rounding error that moves one picture over a kink of a ReLU grows with every step.
TRAIN = TrainSettings(epochs=2, batch_size=24, lr=0.002)
LOSS, MOVED, POINTS = 1e-3, 0.1, 5.0  # relative, relative, percent


def federation(benchmark: Benchmark) -> Federation:
    """Give each domain's first pictures to one device; every seventh test picture is enough."""
    devices = tuple(
        Device(number, domain, rho, 24 + 8 * number)
        for number, (domain, rho) in enumerate(zip(benchmark.domains, RHOS, strict=True))
    )
    domains = benchmark.domains
    return Federation(
        devices=devices,
        train={
            d.id: domains[d.domain].train.pick(torch.arange(d.num_samples) * 13 + d.id)
            for d in devices
        },
        test={name: each.test.pick(torch.arange(0, 400, 7)) for name, each in domains.items()},
        classes=benchmark.classes,
        mean=benchmark.mean,
        std=benchmark.std,
        pad=benchmark.pad,
    )


def trace(name: str, benchmark: Benchmark) -> dict[str, Any]:
    """Run a method for three rounds and return the numbers worth keeping."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        net = nets.build("resnet10", num_classes=10, width=8)
    world = federation(benchmark)
    simulator = Simulator(
        method=methods.load(name)(), net=net, federation=world, train=TRAIN, seed=SEED, rounds=3
    )
    start = simulator.start().server.weights
    records = list(simulator.rounds())
    weights = records[-1].snapshot.server.weights
    return {
        "brightness": [examples.images.double().mean().item() for examples in world.train.values()],
        "rounds": [{"loss": r.loss, "accuracy": dict(r.accuracy)} for r in records],
        "moved": {  # how far, of a few kernels
            parameter: (weights[parameter] - start[parameter]).double().norm().item()
            for parameter in [p for p in simulator.graph.parameters if start[p].dim() > 1][::3]
        },
        "costs": [
            {str(client): asdict(spent) for client, spent in r.costs.items()} for r in records
        ],
    }


def read(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    assert path.exists(), f"{name} has no recorded numbers yet: {COMMAND} {name}"
    golden: dict[str, Any] = json.loads(path.read_text())
    return golden


@pytest.mark.parametrize("name", methods.names())
def test_the_numbers_are_the_recorded_ones(name, minidigits):
    golden, now = read(name), trace(name, minidigits)
    expected = pytest.approx(golden["brightness"], rel=1e-4)
    assert now["brightness"] == expected, "minidigits draws other pictures here"
    assert now["costs"] == golden["costs"]
    for ours, theirs in zip(now["rounds"], golden["rounds"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=LOSS)
        assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=POINTS)
    assert now["moved"] == pytest.approx(golden["moved"], rel=MOVED)


def test_every_recording_belongs_to_a_method():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(methods.names())


def test_methods_differ_in_their_recordings():
    """Otherwise the recordings could not tell one method from another."""
    losses = {name: read(name)["rounds"][-1]["loss"] for name in methods.names()}
    alike = [(a, b) for a in losses for b in losses if a < b and losses[a] == losses[b]]
    assert not alike


def write(names: list[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        benchmark = benchmarks.load("minidigits", Path(root))
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in names or methods.names():
        facts = {"seed": SEED, "versions": versions, **trace(name, benchmark)}
        (FOLDER / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record the golden numbers of methods.")
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("names", nargs="*", choices=[[], *methods.names()], metavar="METHOD")
    write(parser.parse_args().names)
