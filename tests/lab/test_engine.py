"""What an engine's settings come to on a machine without a GPU."""

from functools import partial

import pytest
import torch

from dapperfl.errors import ConfigError
from dapperfl.lab import engine
from dapperfl.lab.config import EngineConfig
from dapperfl.lab.engine import choose
from dapperfl.sim.cpu import CpuRunner
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.loop import LoopRunner


@pytest.fixture(autouse=True)
def _a_machine_with_four_cores_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(engine, "cores", lambda: 4)


@pytest.mark.parametrize(
    ("config", "about", "threads"),
    [
        (EngineConfig(), "cpu engine, 4 workers, fp32, exact", 1),
        (EngineConfig(name="cpu", workers=1), "cpu engine, 1 worker, fp32, exact", 1),
        (EngineConfig(exact=False), "cpu engine, 4 workers, fp32", None),
        (EngineConfig(precision="bf16"), "cpu engine, 4 workers, bf16, exact", 1),
        (EngineConfig(name="loop"), "loop engine, fp32, exact", 1),
    ],
)
def test_what_was_chosen_is_said(config, about, threads):
    chosen = choose(config)
    assert (chosen.device, chosen.about, chosen.threads) == ("cpu", about, threads)


def test_settings_reach_the_runner():
    runner = choose(EngineConfig(workers=3, exact=False)).runner
    assert isinstance(runner, partial)
    assert runner.func is CpuRunner
    assert runner.keywords == {"workers": 3, "exact": False}
    assert choose(EngineConfig(name="loop")).runner is LoopRunner


def test_a_gpu_gets_recorded_steps(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen = choose(EngineConfig(precision="bf16", workers=5))
    assert isinstance(chosen.runner, partial)
    assert chosen.runner.func is GraphRunner
    assert (chosen.device, chosen.threads) == ("cuda", None)
    assert chosen.about == "graphs engine, 5 clients at once, bf16"
    with pytest.raises(ConfigError, match=r'"cpu" does not run on "cuda"; set engine.device=cpu'):
        choose(EngineConfig(name="cpu"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EngineConfig(name="graphs"), '"graphs" needs a CUDA device; choose "cpu" or "auto"'),
        (EngineConfig(precision="tf32"), '"tf32" needs a CUDA device; choose "fp32" or "bf16"'),
    ],
)
def test_what_this_machine_cannot_do_is_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        choose(config)
