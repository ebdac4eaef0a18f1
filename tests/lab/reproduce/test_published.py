"""The rows in results/ are of the settings that the package has now, or pages would be untrue."""

from pathlib import Path

import pytest

from dapperfl.lab.compare.planned import Base, plan_runs
from dapperfl.lab.compare.rows import read_rows
from dapperfl.lab.reproduce.plans import PLANS

ROOT = Path(__file__).resolve().parents[3]
BASES = {"table-digits": "digits", "table-office": "office_caltech"}


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_every_published_row_would_be_planned_today(name, base):
    rows = read_rows(ROOT / f"results/{name}.csv")
    assert rows
    config = ROOT / f"experiments/{base}.toml"
    for precision in {row["precision"] for row in rows}:
        asked = Base(base, config, (f"engine.precision={precision}",))
        planned = {run.label: run.id for run in plan_runs(asked, PLANS[name].variants(), [0])}
        for row in rows:
            if row["precision"] == precision:
                assert row["id"] == planned[row["label"]], row["label"]
