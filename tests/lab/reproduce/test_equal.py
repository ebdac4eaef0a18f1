"""Rates are chosen by pictures kept aside, and ours stands beside all others."""

from dataclasses import replace

import pytest

from dapperfl.lab.compare.variants import parse_variants
from dapperfl.lab.reproduce.equal import best_rates
from dapperfl.lab.reproduce.plans import PLANS
from dapperfl.lab.reproduce.render import render
from tests.lab.compare.made_rows import made_row


def _aside(label, seed, value):
    return {**made_row(label, seed, dark=0, light=0, base="office"), "validation": f"{value}"}


PLAN = replace(PLANS["rates"], methods=tuple(parse_variants("fedavg,dapperfl:default")))


def _rows(fedavg, ours):
    rates = ("0.01", "0.02", "0.04")
    return [
        _aside(f"{name} lr={rate}", seed, value)
        for name, found in (("fedavg", fedavg), ("dapperfl:default", ours))
        for rate, values in zip(rates, found, strict=True)
        for seed, value in enumerate(values)
    ]


def test_each_method_gets_the_rate_that_is_best_over_all_seeds():
    rows = _rows([(50, 50), (90, 20), (60, 60)], [(70, 71), (60, 80), (10, 20)])
    found = best_rates(PLAN, rows, (0, 1))
    assert [variant.label for variant in found] == ["fedavg lr=0.04", "dapperfl:default lr=0.01"]
    assert found[0].settings[-1] == "train.lr=0.04"
    alone = best_rates(PLAN, rows, (0,))
    assert [variant.label for variant in alone] == ["fedavg lr=0.02", "dapperfl:default lr=0.01"]


def test_a_method_without_all_its_trials_waits():
    rows = _rows([(50, 50), (90,), (60, 60)], [(70, 71), (60, 80), (10, 20)])
    found = best_rates(PLAN, rows, (0, 1))
    assert [variant.label for variant in found] == ["dapperfl:default lr=0.01"]
    assert best_rates(PLAN, [], (0, 1)) == []


def test_differences_are_from_ours_though_another_is_better():
    labels = {"fedavg lr=0.04": 80, "dapperfl:default lr=0.02": 70}
    rows = [
        made_row(label, seed, dark=value + seed, light=value + seed, base="office")
        for label, value in labels.items()
        for seed in (0, 1)
    ]
    product = render(PLANS["equal"], rows, [])
    [table] = [each for each in product.document.tables if "differences" in each.title]
    assert {row[0].text: row[-1].text for row in table.rows} == {
        "fedavg lr=0.04": "+10.00 [+10.00, +10.00]"
    }
    [axes] = product.figures[""].axes
    assert [text.get_text() for text in axes.get_yticklabels()] == list(labels)


def test_rates_are_judged_benchmark_by_benchmark():
    rows = _rows([(50, 50), (90, 90), (60, 60)], [(1, 1), (2, 2), (3, 3)])
    rows += [{**row, "base": "digits"} for row in rows]
    product = render(PLANS["rates"], rows, [])
    assert len(product.document.tables) == 2


@pytest.mark.parametrize("name", ["rates", "equal"])
def test_other_data_are_named_without_numbers_that_the_paper_does_not_have(name):
    about = {"base": "office", "benchmark": "minidigits", "validation": "1"}
    rows = [made_row(f"fedavg lr={rate}", 0, dark=1, light=1, **about) for rate in (0.01, 0.02)]
    remarks = render(PLANS[name], rows, []).document.remarks
    assert "Run on minidigits, not on the paper's data." in remarks
    assert not any("orientation" in remark for remark in remarks)
