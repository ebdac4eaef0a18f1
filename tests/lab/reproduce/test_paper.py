"""The paper's numbers agree with each other as far as they must."""

import re
from pathlib import Path
from statistics import fmean

import pytest

from dapperfl.lab.groups import spread
from dapperfl.lab.reproduce.paper import Printed, best_value, gap, paper_table

BASES = ["digits", "office"]
RESULTS = Path(__file__).parents[3] / "results"
DENSE = {"digits": (4.90, 254.17), "office": (11.17, 457.66)}  # millions, as printed


@pytest.mark.parametrize("base", BASES)
def test_nine_methods_whose_global_accuracy_is_below_the_mean_of_best_rounds(base):
    rows = paper_table("accuracy", base).rows
    assert len(rows) == 9
    for cells in rows.values():
        domains = [cell.mean for name, cell in cells.items() if name != "global"]
        assert len(domains) == 4
        # each domain's own best round is at least as good as the round that is best on average
        assert cells["global"].mean <= fmean(domains) + 0.01  # both are rounded


@pytest.mark.parametrize("base", BASES)
def test_pruned_rows_are_a_share_of_the_dense_figures(base):
    for rho, cells in paper_table("footprint", base).rows.items():
        for name, dense in zip(("parameters", "macs"), DENSE[base], strict=True):
            assert cells[name].mean == pytest.approx((1 - float(rho)) * dense, abs=0.006)


@pytest.mark.parametrize(
    ("base", "mean", "std"), [("digits", 74.30, 0.26), ("office", 67.75, 0.97)]
)
def test_complete_is_the_main_tables_dapperfl(base, mean, std):
    assert paper_table("accuracy", base).rows["dapperfl"]["global"] == Printed(mean, std)
    assert paper_table("ablation", base).rows["complete"]["global"] == Printed(mean)


@pytest.mark.parametrize("part", ["accuracy", "footprint", "ablation"])
@pytest.mark.parametrize("base", BASES)
def test_every_table_says_where_it_is(part, base):
    assert paper_table(part, base).place.startswith("Table ")


@pytest.mark.parametrize("base", BASES)
def test_domains_are_named_as_our_rows_name_them(base):
    rows = (RESULTS / f"table-{base}.csv").read_text()
    domains = re.findall(r"(\w+)_best", rows.splitlines()[0])
    assert [*domains, "global"] == list(paper_table("accuracy", base).rows["fedavg"])


def test_best_values_are_the_defaults_of_the_papers_preset():
    found = {name: best_value(name)[0] for name in ("alpha_0", "alpha_min", "epsilon", "gamma")}
    assert found == {"alpha_0": 0.9, "alpha_min": 0.1, "epsilon": 0.2, "gamma": 0.01}


def test_a_gap_is_ours_minus_theirs():
    assert gap(spread([70.0, 72.0]), Printed(74.0)) == -3
