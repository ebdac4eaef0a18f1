import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "batches.py"


def test_batches_are_measured_beside_a_picture_by_picture_pipeline(tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(out)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = json.loads(out.read_text())["rows"][0]
    assert set(row) == {"name", "value", "unit", "baseline", "ratio", "target", "met"}
    assert row["target"] == 10
    assert row["ratio"] > 3  # a quick measurement on a busy machine; the full one is to reach 10
    assert "times as fast" in done.stdout
