"""A scheduler that exists in this file only: its runs are written by hand in an instant."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dapperfl.core.messages import ClientCost
from dapperfl.lab.compare import collect
from dapperfl.lab.folder import RunFolder, write_json
from dapperfl.lab.records import RoundLine, append
from dapperfl.lab.schedule import Job, Outcome, Progress

SUMMARY = {
    "levels": [{"rho": 0.8, "parameters": 20, "macs": 3, "mean_accuracy": 40.0}],
    "versions": {"dapperfl": "1", "torch": "2"},
    "global_accuracy": {"best": 0.0, "last": 0.0},
    "seconds": 1.0,
}


class Scheduler:
    """Does everything but what is to fail; a run of seed s has 10 r + s and 20 + s in round r."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: set[str] = set()
        self.begun: list[str] = []
        monkeypatch.setattr(collect, "run_all", self.run_all)

    def run_all(self, jobs: Sequence[Job], *, workers: int | None, show: Any) -> list[Outcome]:
        outcomes = []
        for job in jobs:
            if not RunFolder(job.out).summary.exists():
                self.begun.append(job.name)
                show(Progress(job, "cpu"))
            outcomes.append(self._outcome(job))
            show(outcomes[-1])
        return outcomes

    def _outcome(self, job: Job) -> Outcome:
        if job.name in self.failing:
            return Outcome(job, error="it broke")
        if not job.out.exists():
            _write(job)
        return Outcome(job, SUMMARY)


def _write(job: Job) -> None:
    folder, seed = RunFolder(job.out), job.config.seed
    for name in ("model.safetensors", "levels/rho-0.80.safetensors", "checkpoint/round-1/x"):
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text("weights")
    aside = {"dark": 10.0 + seed} if job.config.data.validation else {}
    for number in range(1, job.config.rounds + 1):
        dark, light = 10.0 * number + seed, 20.0 + seed
        accuracy = {"dark": dark, "light": light}
        costs = {0: ClientCost(9, 8, 10, 1000, 100, 200)}
        mean = (dark + light) / 2
        append(folder.rounds, RoundLine(number, accuracy, mean, 0.5, 2.0, costs, (), aside))
    write_json(folder.summary, SUMMARY)


def weights(folder: Path) -> list[Path]:
    """Return the files below a folder that hold weights."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if path.read_bytes() == b"weights"]
