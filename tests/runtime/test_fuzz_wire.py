"""Coverage-guided fuzzing of all that reads bytes from elsewhere, where `atheris` installs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
pytest.importorskip("atheris", reason="atheris is for Linux on x86_64")


def fuzzed(code: str, corpus: Path, runs: int) -> subprocess.CompletedProcess[str]:
    options = [str(corpus), f"-runs={runs}", "-seed=1", f"-artifact_prefix={corpus}/"]
    command = [sys.executable, "-c", code, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_no_bytes_do_anything_but_be_read_or_refused(tmp_path):
    done = fuzzed("from tests.runtime.fuzz_wire import main; main()", tmp_path / "corpus", 300_000)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 300000 runs" in done.stderr
    # It has got further than the messages it began with.
    assert len(list((tmp_path / "corpus").iterdir())) > 15


def test_a_reader_that_stumbles_is_found(tmp_path):
    code = (
        "from tests.runtime import fuzz_wire as fuzz\n"
        "def stumble(data):\n"
        "    if data[:1] == b'!': raise KeyError('a bug')\n"
        "fuzz.READERS, fuzz.GOOD = (stumble,), ((0, b'?' * 9),)\n"
        "fuzz.main()"
    )
    done = fuzzed(code, tmp_path / "corpus", 300_000)
    assert done.returncode != 0
    assert "KeyError: 'a bug'" in done.stdout + done.stderr
