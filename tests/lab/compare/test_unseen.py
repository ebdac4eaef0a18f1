"""The table of domains that no device has, of rows made by hand."""

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.planned import Base, plan_runs
from dapperfl.lab.compare.series import series_of
from dapperfl.lab.compare.unseen import unseen_document, unseen_table, without_each
from dapperfl.lab.compare.variants import parse_variants
from tests.lab.compare.made_rows import made_row


def row(label, seed, domain, accuracy):
    """Return a run that did well where it was trained, and so on the domain held out."""
    values = {"dark": 99.0, "light": 99.0} | {domain: accuracy}
    about = {"label": f"{label} without {domain}", "settings": f"data.held_out={domain}"}
    return {**made_row(label, seed, **values), **about}


ROWS = [
    row("fedavg", 0, "dark", 10), row("fedavg", 1, "dark", 14),
    row("fedavg", 0, "light", 30), row("fedavg", 1, "light", 32),
    row("moon", 0, "dark", 20), row("moon", 1, "dark", 26),
    row("moon", 0, "light", 30), row("moon", 1, "light", 30),
]  # fmt: skip


def cells(table):
    return {line[0].text: [cell.text for cell in line[1:]] for line in table.rows}


def test_only_the_domain_held_out_counts():
    table = unseen_table(series_of(ROWS), "x", "fedavg")
    assert table.head == ("", "dark", "light", "mean", "above fedavg")
    found = cells(table)
    # means over domains: 20 and 23; 25 and 28
    assert found["fedavg"] == ["12.00 (2.83)", "31.00 (1.41)", "21.50 (2.12)", ""]
    assert found["moon"][:3] == ["23.00 (4.24)", "30.00 (0.00)", "26.50 (2.12)"]
    assert found["moon"][3] == "+5.00 [+5.00, +5.00]"


def test_devices_that_were_left_out_are_told():
    lost = {"left_out": "3", "client_rounds": "12"}
    told = unseen_table(series_of([{**ROWS[0], **lost}, *ROWS[1:]]), "x").notes[-1]
    assert "fedavg without dark, seed 0: 3 of 12 client rounds" in told


def test_without_a_baseline_the_best_mean_is_one():
    assert unseen_table(series_of(ROWS), "x").head[-1] == "above moon"


def test_a_seed_that_lacks_a_domain_is_in_no_mean():
    document = unseen_document(ROWS[:-1], baseline="fedavg")
    found = cells(document.tables[0])
    assert found["moon"] == ["23.00 (4.24)", "30.00", "25.00", "+5.00"]
    assert any("moon without light has seed 0 only" in remark for remark in document.remarks)


def test_a_variant_without_any_run_of_a_domain_has_no_mean():
    found = cells(unseen_table(series_of(ROWS[:6]), "x", "fedavg"))
    assert found["moon"] == ["23.00 (4.24)", "–", "–", "–"]


def test_a_domain_may_have_the_letters_that_part_settings():
    rows = [
        {k.replace("dark", "x; y"): v.replace("dark", "x; y") for k, v in r.items()} for r in ROWS
    ]
    rows = [row | {"settings": f"{row['settings']}; method.mu=0.5"} for row in rows]
    table = unseen_table(series_of(rows), "x", "fedavg")
    assert table.head == ("", "x; y", "light", "mean", "above fedavg")
    assert cells(table) == cells(unseen_table(series_of(ROWS), "x", "fedavg"))


def test_an_unknown_baseline_is_named():
    with pytest.raises(ConfigError, match='"fedprox"'):
        unseen_table(series_of(ROWS), "x", "fedprox")


def test_every_variant_is_planned_without_every_domain():
    base = Base("demo", None)
    variants = parse_variants("fedavg,w/o DAR=dapperfl{method.gamma=0}")
    found = without_each(variants, plan_runs(base, variants, [0, 1]), ["a", "b"])
    runs = plan_runs(base, found, [0])
    assert [(run.label, run.config.data.held_out) for run in runs] == [
        ("fedavg without a", "a"), ("fedavg without b", "b"),
        ("w/o DAR without a", "a"), ("w/o DAR without b", "b"),
    ]  # fmt: skip
    assert runs[-1].config.method.fields["gamma"] == 0
