import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "benchmarks" / "bench.py"


def test_the_quick_bench_writes_rows_that_can_be_read(tmp_path):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--out", str(out)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(out.read_text())
    assert {"torch", "threads", "command", "when"} <= facts.keys()
    assert len(facts["rows"]) == 12
    for row in facts["rows"]:
        assert set(row) == {"name", "value", "unit", "baseline", "ratio", "target", "met"}
        assert row["value"] > 0
    uploads = [row for row in facts["rows"] if row["target"] is not None]
    assert len(uploads) == 8
    assert all(row["met"] for row in uploads)
