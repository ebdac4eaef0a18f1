"""Tables and figures of rows made by hand: what is beside the paper, on which axes."""

from math import sqrt

import numpy as np
import pytest

from dapperfl.errors import CheckpointError
from dapperfl.lab.compare.rows import write_rows
from dapperfl.lab.compare.series import series_of
from dapperfl.lab.reproduce.beside import Pair, differences
from dapperfl.lab.reproduce.curves import best_so_far
from dapperfl.lab.reproduce.paper import Printed, paper_table
from dapperfl.lab.reproduce.plans import PLANS
from dapperfl.lab.reproduce.render import render, write_from_csv
from dapperfl.lab.reproduce.search import distinct
from dapperfl.lab.reproduce.sweeps import AVERAGE, lines_of
from tests.lab.compare.made_rows import made_row


def _rows(*specs):
    return [
        made_row(label, seed, dark=value, light=value, base=base, settings=settings)
        for label, seed, value, base, settings in specs
    ]


def _table(product, title):
    [table] = [each for each in product.document.tables if title in each.title]
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_differences_name_what_is_far_from_the_paper_and_only_that():
    rows = _rows(("fedavg", 0, 70, "digits", ""), ("moon", 0, 40, "digits", ""))
    near, far = series_of(rows)
    pairs = [Pair(near, {"global": Printed(71.8)}), Pair(far, {"global": Printed(69.4)})]
    assert differences(pairs) == [
        "digits, moon is more than 3 points from the paper: global 40.0 / 69.4 (-29.4)."
    ]
    assert differences(pairs[:1]) == ["No number is more than 3 points from the paper's."]


def test_the_main_table_stands_beside_the_papers():
    rows = _rows(("fedavg", 0, 70, "digits", ""), ("heterofl", 0, 60, "digits", ""))
    product = render(PLANS["table-digits"], rows, [])
    assert _table(product, "beside the paper") == {"fedavg": ["70.0 / 71.8 (-1.8)"]}
    assert product.document.remarks == ("No number is more than 3 points from the paper's.",)


def test_other_data_are_not_compared_with_the_paper():
    rows = [{**row, "benchmark": "minidigits"} for row in _rows(("moon", 0, 9, "digits", ""))]
    [remark] = render(PLANS["table-digits"], rows, []).document.remarks
    assert "minidigits, not on the paper's data" in remark


def test_an_ablation_is_paired_with_the_complete_method():
    specs = [("dapperfl:paper w/o DAR", seed, 60 + seed, "digits", "") for seed in (0, 1)]
    specs += [("dapperfl:paper complete", seed, 70 + 3 * seed, "digits", "") for seed in (0, 1)]
    product = render(PLANS["ablation"], _rows(*specs), [])
    # -10 and -12: mean -11, std √2, 12.706 √2 / √2
    assert _table(product, "differences") == {
        "dapperfl:paper w/o DAR": ["2", *["-11.00 [-23.71, +1.71]"] * 2]
    }
    assert _table(product, "beside")["dapperfl:paper complete"] == ["71.5 / 74.3 (-2.8)"]


def test_an_average_over_benchmarks_is_taken_seed_by_seed():
    specs = [
        (f"dapperfl:paper gamma={g}", seed, value, base, f"method.gamma={g}")
        for g, seed, base, value in [
            (0.1, 0, "digits", 50), (0.1, 1, "digits", 60),
            (0.1, 0, "office", 30), (0.1, 1, "office", 50),
            (0.2, 0, "digits", 10),
        ]
    ]  # fmt: skip
    lines = lines_of(series_of(_rows(*specs)), "gamma")
    assert list(lines) == ["digits", "office", AVERAGE]
    # seeds: 40 and 55
    assert lines[AVERAGE][0.1].mean == 47.5
    assert lines[AVERAGE][0.1].std == pytest.approx(7.5 * sqrt(2))
    assert list(lines[AVERAGE]) == [0.1]  # office has no 0.2


def test_a_sweep_says_where_its_best_is_and_the_papers():
    specs = [
        (f"dapperfl:paper gamma={g}", seed, value, "digits", f"method.gamma={g}")
        for g, value in ((0, 50), (0.01, 60), (0.1, 70))
        for seed in (0, 1)
    ]
    product = render(PLANS["gamma"], _rows(*specs), [])
    [remark] = product.document.remarks
    assert remark.startswith("dapperfl:paper: best on digits at gamma=0.1 (70.0); at 0.01, the")
    assert remark.endswith("60.0 (std 0.0). This differs.")
    [axes] = product.figures[""].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("gamma", "global accuracy [%]")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.01", "0.1"]


def test_a_sweep_of_one_seed_has_no_verdict_and_only_the_papers_number_for_its_benchmark():
    specs = [
        (f"dapperfl:paper gamma={g}", 0, value, "office", f"method.gamma={g}")
        for g, value in ((0, 50), (0.01, 60))
    ]
    product = render(PLANS["gamma"], _rows(*specs), [])
    *_, remark = product.document.remarks
    assert remark.endswith("60.0. One seed, so no verdict.")
    [axes] = product.figures[""].axes
    printed = paper_table("accuracy", "office").rows["dapperfl"]["global"].mean
    marks = np.concatenate([np.asarray(each.get_offsets()) for each in axes.collections])
    assert [1, printed] in marks.tolist()
    assert {1: printed}.items() == dict(marks[marks[:, 1] > 60].tolist()).items()


def test_ratios_show_the_net_that_devices_take_home_beside_the_global_one():
    own = {"weakest_accuracy": "61.5", "settings": "fleet.rhos=[0.8]"}
    row = made_row("nefl ρ=0.8", 0, dark=10, light=12, base="office", **own)
    product = render(PLANS["footprint"], [row], [])
    assert _table(product, "accuracy as in the paper")["nefl ρ=0.8"][-1] == "11.00"
    assert _table(product, "the devices' nets")["nefl ρ=0.8"][:2] == ["61.50", "200"]
    [axes] = product.figures[""].axes
    heights = {
        line.get_linestyle(): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()[:2]
    }
    assert heights == {"-": [11.0], "--": [61.5]}


def test_curves_show_the_best_until_each_round():
    rounds = [
        {"seed": seed, "round": str(number), "x": str(value)}
        for seed, values in (("0", (10, 30, 20)), ("1", (20, 10, 40)))
        for number, value in reversed(list(enumerate(values, start=1)))
    ]
    found = best_so_far(rounds, "x")
    assert [(each.low, each.high) for each in found] == [(10, 20), (20, 30), (30, 40)]


def test_values_of_a_search_are_all_different():
    assert distinct(0.12341, []) == 0.1234
    assert distinct(0.12341, [0.1234]) == 0.1235
    assert distinct(0.1999, [0.1999, 0.1998]) == 0.1997


def test_a_round_without_a_domain_that_is_drawn_is_named():
    rows = [made_row("fedavg", 0, dark=1, light=1)]
    about = {"base": "digits", "label": "fedavg", "seed": "0"}
    rounds = [{**about, "round": "1", "global": "50", "dark": "50"}]
    with pytest.raises(CheckpointError, match="digits: fedavg, seed 0 has no light"):
        render(PLANS["curves"], rows, rounds)


def test_curves_without_their_rounds_are_refused(tmp_path):
    path = tmp_path / "curves.csv"
    write_rows(path, _rows(("moon", 0, 40, "digits", "")))
    with pytest.raises(CheckpointError, match=r"curves-rounds\.csv, which is missing"):
        write_from_csv(PLANS["curves"], path)


@pytest.mark.parametrize(
    ("name", "base", "label"),
    [
        ("table-digits", "office", "moon"),
        ("curves", "demo", "moon"),
        ("ablation", "digits", "dapperfl:paper"),
        ("gamma", "digits", "dapperfl:paper"),
        ("epsilon-search", "office", "dapperfl:default"),
    ],
)
def test_the_rows_of_another_table_are_refused(tmp_path, name, base, label):
    path = tmp_path / "other.csv"
    write_rows(path, _rows((label, 0, 40, base, "")))
    with pytest.raises(CheckpointError, match=f"{base}: {label}, which is no row of {name}"):
        write_from_csv(PLANS[name], path)
