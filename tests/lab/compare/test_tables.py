"""Tables of rows made by hand: means, deviations, ranks, what is missing."""

from math import sqrt

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.compare.formats import to_latex, to_markdown
from dapperfl.lab.compare.output import comparison
from dapperfl.lab.compare.series import left_out, missing_seeds, mixed_pictures, series_of
from dapperfl.lab.compare.tables import (
    accuracy_table,
    aside_table,
    beyond_table,
    cost_table,
    named,
    paired_table,
)
from tests.lab.compare.made_rows import made_row

ROWS = [
    made_row("fedavg", 1, dark=20, light=60),
    made_row("fedavg", 0, dark=10, light=50),
    made_row("moon", 0, dark=40, light=30),
    made_row("moon", 1, dark=44, light=30),
    made_row("dapperfl:paper", 0, dark=5, light=5),
]


def _cells(table):
    return {row[0].text: [(cell.text, cell.rank) for cell in row[1:]] for row in table.rows}


def test_mean_and_sample_deviation_with_the_best_and_the_second_marked():
    table = accuracy_table(series_of(ROWS), "x")
    assert table.head == ("", "dark", "light", "global")
    cells = _cells(table)
    # 10 and 20: mean 15, std √(25 + 25) = 7.07; global 30 and 40: 35, 7.07
    assert cells["fedavg"] == [("15.00 (7.07)", 2), ("55.00 (7.07)", 1), ("35.00 (7.07)", 2)]
    # 35 and 37: std √2
    assert cells["moon"] == [
        ("42.00 (2.83)", 1),
        ("30.00 (0.00)", 2),
        (f"36.00 ({sqrt(2):.2f})", 1),
    ]
    assert cells["dapperfl:paper"] == [("5.00", None)] * 3


def test_worst_domain_and_spread_are_taken_run_by_run():
    cells = _cells(beyond_table(series_of(ROWS), "x"))
    assert cells["fedavg"][2:] == [("15.00 (7.07)", 2), ("40.00 (0.00)", None)]
    assert cells["moon"][2:] == [("30.00 (0.00)", 1), (f"12.00 ({2 * sqrt(2):.2f})", None)]


def test_costs_are_means_for_people():
    cells = _cells(cost_table(series_of(ROWS), "x"))
    assert [text for text, _ in cells["fedavg"]] == [
        "1.00 k", "1.00 k", "1.00 k", "1.00 kB", "1.00 kB", "1:01",
    ]  # fmt: skip


def test_differences_are_from_the_best_or_from_whom_one_likes():
    every = series_of(ROWS)
    table = paired_table(every, "x")
    assert "above moon (the best mean" in table.notes[0]
    assert [text for text, _ in _cells(table)["dapperfl:paper"]] == ["1", "-30.00", "-30.00"]
    # moon above fedavg: 35 - 30 and 37 - 40; mean 1, std √32, 12.706 √32 / √2 = 50.82
    against = _cells(paired_table(every, "x", "fedavg"))
    assert against["moon"][1] == ("+1.00 [-49.82, +51.82]", None)
    assert named(every, "dapperfl").label == "dapperfl:paper"
    with pytest.raises(ConfigError, match="there are fedavg, moon, dapperfl:paper"):
        named(every, "fedprox")


def test_a_variant_with_fewer_seeds_is_named():
    [text] = missing_seeds(series_of(ROWS))
    assert text == "digits: dapperfl:paper has seed 0 only; others have 0, 1."
    assert text in comparison(ROWS).remarks


def test_devices_that_were_left_out_are_told_in_every_format():
    lost = {"left_out": "15", "client_rounds": "60"}
    rows = [
        *({**row, **lost} for row in ROWS[:2]),
        ROWS[2],
        {**ROWS[3], "left_out": "2"},  # an older row does not know of how many
        {**ROWS[4], "left_out": "0", "client_rounds": "60"},
    ]
    told = (
        "Devices were left out of rounds: fedavg, seed 0, 1: 30 of 120 client rounds; moon, seed "
        "1: 2 client rounds (the rounds.jsonl of a run says which, and why)."
    )
    assert left_out(series_of(rows)) == [told]
    first = comparison(rows).tables[0]
    assert first.notes[-1] == told
    for text in (to_markdown(first), to_latex(first)):
        assert told in text
    assert not left_out(series_of(ROWS))
    aside = [{**row, "blind": "True"} for row in with_aside(rows, [1, 2, 3, 4, 5])]
    assert comparison(aside).tables[0].notes[-1] == told


def test_runs_on_pictures_that_changed_in_between_are_told_apart():
    files = ["new", "old", "old", "old", ""]
    rows = [{**row, "files": mark} for row, mark in zip(ROWS, files, strict=True)]
    [told] = mixed_pictures(series_of(rows))
    assert told == (
        "digits: pictures have come, gone or changed between the runs fedavg, seed 0; moon, seed "
        "0, 1 | fedavg, seed 1; another --out trains all on the same."
    )
    assert told in comparison(rows).remarks
    assert not mixed_pictures(series_of(ROWS))
    elsewhere = [{**row, "settings": f"data.root={row['files']}"} for row in [rows[0], rows[2]]]
    assert not mixed_pictures(series_of(elsewhere))  # two folders, as was asked for


def with_aside(rows, values):
    return [{**row, "validation": str(value)} for row, value in zip(rows, values, strict=True)]


def test_what_was_kept_aside_orders_the_variants():
    rows = with_aside(ROWS[:4], [60.0, 50.0, 53.0, 65.0])
    table = aside_table(series_of(rows), "x", "fedavg")
    assert table.head == ("", "seeds", "kept aside", "above fedavg")
    cells = _cells(table)
    assert list(cells) == ["moon", "fedavg"]
    assert cells["fedavg"] == [("2", None), ("55.00 (7.07)", 2), ("", None)]
    # above by 3 and 5: 4 with std √2, standard error 1, and Student's 12.71
    assert cells["moon"] == [("2", None), ("59.00 (8.49)", 1), ("+4.00 [-8.71, +16.71]", None)]


def test_the_table_to_choose_by_is_there_where_something_was_kept_aside():
    assert not any("choose" in table.title for table in comparison(ROWS[:4]).tables)
    rows = with_aside(ROWS[:4], [1, 2, 3, 4])
    assert "choose" in comparison(rows).tables[-1].title


def test_what_was_chosen_blindly_is_not_shown_as_if_it_were_the_test():
    rows = [*({**row, "blind": "True"} for row in with_aside(ROWS[:2], [1, 2])), *ROWS[2:4]]
    choose, costs = comparison(rows).tables
    assert "choose" in choose.title
    assert list(_cells(choose)) == ["fedavg"]
    assert "costs" in costs.title


def test_own_models_are_shown_where_rows_know_them():
    rows = [
        *({**row, "own_accuracy": value} for row, value in zip(ROWS[:2], "73", strict=True)),
        *ROWS[2:4],
    ]
    table = beyond_table(series_of(rows), "x")
    assert table.head[-1] == "own model"
    assert "takes home" in table.notes[-1]
    cells = _cells(table)
    assert cells["fedavg"][-1] == ("5.00 (2.83)", None)
    assert cells["moon"][-1] == ("–", None)
    assert beyond_table(series_of(ROWS), "x").head[-1] == "spread"


def test_calibrated_models_are_shown_where_rows_know_them():
    rows = [
        *({**row, "own_calibrated": value} for row, value in zip(ROWS[:2], "84", strict=True)),
        *ROWS[2:4],
    ]
    table = beyond_table(series_of(rows), "x")
    assert table.head[-2:] == ("spread", "calibrated")
    assert "its own pictures" in table.notes[-1]
    assert _cells(table)["fedavg"][-1] == ("6.00 (2.83)", None)


def test_a_domain_called_global_is_not_the_mean_over_domains():
    row = made_row("fedavg", 0, dark=20, light=30)
    row = {name.replace("dark", "global"): text for name, text in row.items()}
    table = accuracy_table(series_of([row]), "x")
    assert table.head == ("", "global (domain)", "light", "global")
    assert [cell.text for cell in table.rows[0]] == ["fedavg", "20.00", "30.00", "25.00"]


def without(row, domain):
    return {name: "" if name.startswith(f"{domain}_") else cell for name, cell in row.items()}


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_domain_that_a_seed_lacks_is_of_the_seeds_that_have_it_and_named(lacking):
    rows = [made_row("fedavg", seed, dark=20 + 2 * seed, light=60) for seed in (0, 1, 2)]
    rows[lacking] = without(rows[lacking], "light")
    found = comparison(rows)
    cells = _cells(found.tables[0])
    assert cells["fedavg"][:2] == [("22.00 (2.00)", None), ("60.00 (0.00)", None)]
    # The worst of a run is of the domains that it has; so is the range, 0 where there is one.
    worst, apart = _cells(found.tables[1])["fedavg"][2:4]
    assert worst[0] == "22.00 (2.00)"
    gaps = [0 if seed == lacking else 40 - 2 * seed for seed in (0, 1, 2)]
    assert apart[0].startswith(f"{sum(gaps) / 3:.2f}")
    told = [each for each in found.remarks if "light" in each]
    assert told == [
        f"digits: fedavg, seed {lacking} has no numbers of light (no picture of it was kept aside, "
        "or tested); its means are over the other domains."
    ]


def test_runs_that_look_at_no_test_pictures_have_a_table_though_domains_differ():
    rows = [made_row("fedavg", seed, dark=20, light=60, blind="True") for seed in (0, 1)]
    rows = [{**row, "validation": "40.0"} for row in rows]
    found = comparison([rows[0], without(rows[1], "light")])
    assert [table.title for table in found.tables] == ["digits: to choose by", "digits: costs"]
    assert any("seed 1 has no numbers of light" in each for each in found.remarks)
