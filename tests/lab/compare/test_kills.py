"""A comparison that is killed half way is finished by the same command, with the same table."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ROUNDS = 12
SETTINGS = ["data=minidigits", "data.fraction=0.03", "net=convnet", "net.width=4",
            "train.epochs=1", f"rounds={ROUNDS}", "engine.device=cpu"]  # fmt: skip
WATCHED = ("method", "preset", "seed", "best", "last", "last5", "photo_best", "street_last5",
           "parameters", "flops", "bytes", "id")  # fmt: skip


def _start(out: Path, root: Path) -> subprocess.Popen[str]:
    settings = [part for each in [*SETTINGS, f"data.root={root}"] for part in ("--set", each)]
    command = [sys.executable, "-m", "dapperfl", "compare", "--methods", "fedavg,moon,dapperfl",
               "--seeds", "0,1", "--workers", "2", "--out", str(out), *settings]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(out: Path, root: Path) -> str:
    with _start(out, root) as process:
        text, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return text


def _rounds(out: Path) -> dict[Path, list[str]]:
    """Return the rounds of each run that no kill can take back; seconds tell them apart."""
    found = {}
    for path in out.glob("runs/*/*/rounds.jsonl"):
        kept = path.with_name("checkpoint").glob("round-*")
        done = max((int(each.name.removeprefix("round-")) for each in kept), default=0)
        found[path] = path.read_text().splitlines()[:done]
    return found


def _half_way(out: Path) -> bool:
    done = [len(lines) for lines in _rounds(out).values()]
    return any(out.glob("runs/*/*/summary.json")) and any(0 < each < ROUNDS - 2 for each in done)


def _numbers(out: Path) -> list[list[str]]:
    with (out / "compare.csv").open(newline="") as file:
        return [[row[name] for name in WATCHED] for row in csv.DictReader(file)]


def _tables(out: Path) -> str:
    """Return the page up to the costs, where wall time begins."""
    return (out / "compare.md").read_text().partition("**demo: costs**")[0]


@pytest.mark.timeout(500)
def test_it_is_finished_without_repeating_rounds_and_with_the_same_table(tmp_path, minidigits_root):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    _finish(whole, minidigits_root)
    with _start(killed, minidigits_root) as process:
        for _ in range(4000):
            if _half_way(killed):
                break
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=60)
    before = _rounds(killed)
    assert any(0 < len(lines) < ROUNDS for lines in before.values())
    text = _finish(killed, minidigits_root)
    assert "(was finished before)" in text
    after = _rounds(killed)
    assert len(after) == 6
    assert all(len(lines) == ROUNDS for lines in after.values())
    assert all(after[path][: len(lines)] == lines for path, lines in before.items())
    assert _numbers(killed) == _numbers(whole)
    assert _tables(killed) == _tables(whole)
