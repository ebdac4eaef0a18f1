import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def measured(script: str, out: Path) -> tuple[dict[str, Any], str]:
    """Run a benchmark quickly; return what it wrote and what it printed."""
    command = [sys.executable, str(BENCHMARKS / script), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(out.read_text())
    for row in facts["rows"]:
        assert set(row) == {"name", "value", "unit", "baseline", "ratio", "target", "met"}
        assert row["value"] > 0
    return facts, done.stdout


def test_the_quick_bench_writes_rows_that_can_be_read(tmp_path):
    facts, _ = measured("bench.py", tmp_path / "rows.json")
    assert {"torch", "threads", "command", "when"} <= facts.keys()
    assert len(facts["rows"]) == 12
    uploads = [row for row in facts["rows"] if row["target"] is not None]
    assert len(uploads) == 8
    assert all(row["met"] for row in uploads)


def test_batches_are_measured_beside_a_picture_by_picture_pipeline(tmp_path):
    facts, printed = measured("batches.py", tmp_path / "rows.json")
    row = facts["rows"][0]
    assert row["target"] == 10
    assert row["ratio"] > 3  # a quick measurement on a busy machine; the full one is to reach 10
    assert "times as fast" in printed
