"""How long a person waits for the first training step of `dapperfl run`, with a warm cache."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import ROOT, Options, Row, as_much, at_most, medians

METHOD = "benchmarks.baselines.first_step:Told"
PATIENCE = 300.0  # seconds


def first_step() -> None:
    """Run the demo until its first step begins, then end it and whatever it started."""
    with TemporaryDirectory() as folder:
        mark = Path(folder) / "mark"
        command = [sys.executable, "-m", "dapperfl", "run", "--out", f"{folder}/run"]
        command += ["--set", f"method={METHOD}"]
        environment = os.environ | {"DAPPERFL_BENCH_MARK": str(mark)}
        run = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _await(mark, run)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def _await(mark: Path, run: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while not mark.exists():
        if run.poll() is not None or time.monotonic() > until:
            raise RuntimeError("`dapperfl run` ended, or waited, before its first training step")
        time.sleep(0.005)


def import_torch() -> None:
    """Start a program that only imports torch."""
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def measure(options: Options) -> Iterator[Row | str]:
    """Compare the way to the first step with the import of torch, which is most of it."""
    work = [first_step, import_torch]
    timed = medians(work, 1, warm=False) if options.quick else medians(work, 5)
    name = "start of `dapperfl run` (demo) to its first training step, over `import torch`"
    yield as_much(name, timed[0], "s", timed[1], at_most(5, "value"))
