"""A search whose process is killed at a moment of its own, then started again."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dapperfl.lab.resolve import resolve
from dapperfl.lab.tuning import tune
from dapperfl.lab.tuning.search import STUDY
from tests.lab.conftest import TOY
from tests.lab.tuning.test_search import facts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SETTINGS = [*TOY, "net.width=4", "train.batch_size=4", "data.fraction=0.6", "rounds=8"]
SPACE = ["method.gamma=log(1e-4,1)", "method.alpha_0=0..1"]
TRIALS = 8


def _start(out: Path, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dapperfl", "tune", "--out", str(out)]
    command += ["--trials", str(TRIALS), "--workers", str(workers)]
    command += [part for each in SETTINGS for part in ("--set", each)]
    command += [part for each in SPACE for part in ("--space", each)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(out: Path) -> int:
    """Count the trials that are done, as another reader of the database sees them."""
    try:
        database = sqlite3.connect(f"file:{out / STUDY}?mode=ro", uri=True)
        try:
            query = "select count(*) from trials where state in ('COMPLETE', 'PRUNED')"
            return int(database.execute(query).fetchone()[0])
        finally:
            database.close()
    except sqlite3.OperationalError:
        return 0  # the file, or its tables, are not there yet


def _kill_after(out: Path, trials: int, workers: int) -> None:
    with _start(out, workers) as process:
        for _ in range(2400):
            if _ended(out) >= trials or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_a_search_killed_twice_is_the_one_that_was_not(tmp_path):
    out = tmp_path / "killed"
    for trials in (1, 4):
        _kill_after(out, trials, workers=1)
    done = _ended(out)
    assert 4 <= done < TRIALS + 1
    with _start(out, workers=1) as process:
        text, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert f"trial {TRIALS}/{TRIALS}" in text
    config = resolve(None, SETTINGS)
    killed = tune(config, SPACE, out=out, trials=TRIALS)  # reads what is there
    assert facts(killed) == facts(tune(config, SPACE, out=tmp_path / "whole", trials=TRIALS))


def test_two_workers_die_with_their_parent_and_their_trials_are_tried_again(tmp_path):
    out = tmp_path / "killed"
    _kill_after(out, 2, workers=2)
    with _start(out, workers=2) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    result = tune(resolve(None, SETTINGS), SPACE, out=out, trials=TRIALS)
    assert [trial.number for trial in result.trials] == list(range(TRIALS + 1))
    assert all(trial.state != "failed" for trial in result.trials)
