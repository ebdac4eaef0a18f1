"""A run that is killed again and again ends where the undisturbed one does, bit for bit.

Every attempt is a process of its own that dies of a real SIGKILL: sent from outside after a random
time, or by itself just before or after a random write has reached the disk.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.conftest import TOY, assert_equal_runs

ROOT = Path(__file__).parents[2]
# A net with batch norm and a method with a statistics phase, so that buffers are at stake too.
SETTINGS = [*TOY, "net=resnet10", "net.width=8", "rounds=8", "train.epochs=1", "fleet.rhos=[0,0.5]"]
# A method whose clients remember, on disk from the first byte; some take part in a round.
MEMORIES = ["method=moon", "engine.memory_limit_mb=0", "fleet.participation=0.7"]
PROGRAM = """
import os, signal, sys
real, left, before = os.fsync, int(sys.argv.pop(1)), sys.argv.pop(1) == "before"
def fsync(handle):
    global left
    left -= 1
    if left == 0 and before:
        os.kill(os.getpid(), signal.SIGKILL)
    real(handle)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
from dapperfl.cli import main
main()
"""


def _start(
    out: Path, changes: list[str], die_at_write: int = 0, before: bool = False
) -> subprocess.Popen[str]:
    settings = [part for each in [*SETTINGS, *changes] for part in ("--set", each)]
    moment = [str(die_at_write), "before" if before else "after"]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *moment, "run", *settings, "--out", str(out), "--resume"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _finish(out: Path, changes: list[str]) -> float:
    """Run to the end; return the seconds from the header on."""
    with _start(out, changes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        process.communicate(timeout=120)
    assert process.returncode == 0
    return time.monotonic() - began


def _kill(out: Path, changes: list[str], rng: random.Random, seconds: float) -> bool:
    """Start or continue the run and kill it somewhere; say whether it was killed."""
    if rng.random() < 0.5:
        with _start(out, changes, rng.randint(1, 20), rng.random() < 0.5) as process:
            process.communicate(timeout=120)
    else:
        with _start(out, changes) as process:
            assert process.stdout is not None
            process.stdout.readline()  # the first seconds only import torch
            time.sleep(rng.uniform(0, 0.35 * seconds))
            process.kill()
            process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def _kill_often(
    folder: Path, changes: list[str], *, kills: int, at_most_each: int
) -> tuple[Path, list[Path]]:
    """Kill runs until there were so many kills; return the whole run and the finished others."""
    reference = folder / "reference"
    seconds = _finish(reference, changes)
    rng = random.Random(20)
    killed = 0
    runs: list[Path] = []
    while killed < kills:
        out = folder / f"killed-{len(runs)}"
        for _ in range(min(at_most_each, kills - killed)):
            if not _kill(out, changes, rng, seconds):
                break  # it was faster than the kill
            killed += 1
        _finish(out, changes)
        runs.append(out)
    return reference, runs


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_kills_change_nothing(tmp_path):
    whole, runs = _kill_often(tmp_path, [], kills=20, at_most_each=4)
    assert len(runs) >= 5
    for run in runs:
        assert_equal_runs(whole, run)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_kills_lose_no_memory_that_is_on_disk(tmp_path):
    whole, runs = _kill_often(tmp_path, MEMORIES, kills=10, at_most_each=5)
    assert len(runs) >= 2
    for run in runs:
        assert_equal_runs(whole, run)
