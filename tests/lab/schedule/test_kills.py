"""Lists of runs whose processes are killed or interrupted, then started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dapperfl.lab.experiment import run
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.resolve import resolve
from dapperfl.lab.schedule import Job, run_all
from tests.lab.conftest import TOY, assert_equal_runs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SETTINGS = [*TOY, "net.width=4", "train.epochs=1", "rounds=30"]
# No `if __name__ == "__main__"`: a script in a notebook's manner must do.
PROGRAM = """
import sys
from pathlib import Path
from tests.lab.schedule.test_kills import jobs
from dapperfl.lab.schedule import run_all

print(*[outcome.error for outcome in run_all(jobs(Path(sys.argv[1])), workers=2)])
"""


def jobs(folder: Path) -> list[Job]:
    return [
        Job(f"seed {seed}", resolve(None, [*SETTINGS, f"seed={seed}"]), folder / f"{seed}")
        for seed in range(4)
    ]


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_until(happened: Callable[[], object]) -> None:
    for _ in range(1200):
        if happened():
            return
        time.sleep(0.05)
    pytest.fail("waited a minute in vain")


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _lines(folder: Path) -> dict[str, list[str]]:
    """Return the rounds of each run that are on the disk for good; seconds tell them apart."""
    found = {}
    for path in folder.glob("*/rounds.jsonl"):
        kept = path.with_name("checkpoint").glob("round-*")
        done = max((int(each.name.removeprefix("round-")) for each in kept), default=0)
        found[path.parent.name] = path.read_text().splitlines()[:done]
    return found


def _half_way(folder: Path) -> bool:
    """Say whether a run is finished while another is in its midst."""
    done = [len(lines) for lines in _lines(folder).values()]
    return any(folder.glob("*/summary.json")) and any(0 < number < 20 for number in done)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_list_stopped_half_way_is_finished_without_repeating_rounds(tmp_path, how):
    folder = tmp_path / "list"
    with _start(folder) as process:
        _wait_until(lambda: _half_way(folder))
        workers = _children(process.pid)
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
    assert workers
    assert process.returncode == -how
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    _wait_until(lambda: not any(_lives(pid) for pid in workers))
    for job in jobs(folder):
        with RunFolder(job.out).held():
            pass
    before = _lines(folder)
    assert any(0 < len(lines) < 30 for lines in before.values())
    with _start(folder) as process:
        text, errors = process.communicate(timeout=120)
    assert (text.split(), process.returncode) == (["None"] * 4, 0), errors
    after = _lines(folder)
    assert all(after[name][: len(lines)] == lines for name, lines in before.items())
    for job in jobs(folder):
        run(job.config, tmp_path / "alone" / job.out.name)
        assert_equal_runs(tmp_path / "alone" / job.out.name, job.out)


def test_hopeless_runs_fail_and_the_others_are_done(tmp_path, caplog):
    def job(name: str) -> Job:
        data = f"data=tests.lab.schedule.troubles:load_{name}"
        return Job(name, resolve(None, [*SETTINGS, "rounds=2", data, f"data.root={tmp_path}"]),
                   tmp_path / name)  # fmt: skip

    names = ["killed", "quitting", "chatty", "large_once"]
    killed, quitting, chatty, large = run_all([job(name) for name in names], workers=2)
    assert killed.error == "the process died with signal 9 (SIGKILL)"
    assert quitting.error == "the process ended with code 3: enough"
    assert chatty.error is None
    assert large.error is None
    assert caplog.text.count("it is tried again, alone, after the others") == 2
    assert "large_once: OutOfMemoryError: CUDA out of memory" in caplog.text
