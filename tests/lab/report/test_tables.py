"""Numbers in tables, against arithmetic done by hand."""

import re

import pytest
from tests.lab.made_runs import write_run

from dapperfl.lab.gather import load_runs
from dapperfl.lab.groups import grouped, spread
from dapperfl.lab.report.tables import accuracy_table, cost_table, level_table, mean_std, table


def _rows(markup: str) -> list[list[str]]:
    """Return the cells of a table's body, as they are written."""
    body = markup.partition("<tbody>")[2]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("<tr>")[1:]]


@pytest.fixture
def groups(tmp_path):
    write_run(tmp_path / "a0", dark=(50, 70), light=(10, 40))
    write_run(tmp_path / "a1", "seed=1", dark=(50, 72), light=(10, 40))
    write_run(tmp_path / "b", "method=fedavg", dark=(90, 60), light=(10, 50))
    write_run(tmp_path / "c", "method=fedprox", dark=(20, 30), light=(10, 20))
    return grouped(load_runs([tmp_path]))


def test_a_table_names_its_rows_and_escapes_its_cells():
    made = table("<caption>", ["", "x"], [["<row>", 3]])
    assert "&lt;caption&gt;" in made
    assert '<th scope="row">&lt;row&gt;</th><td>3</td>' in made


def test_a_single_seed_has_no_deviation():
    assert mean_std(spread([1.234])) == "1.23"
    assert mean_std(spread([1.0, 3.0])) == "2.00 (1.41)"


def test_the_best_is_bold_and_the_second_underlined(groups):
    rows = _rows(accuracy_table(groups, ("dark", "light"), "last"))
    assert rows == [
        ["dapperfl:default", "<strong>71.00 (1.41)</strong>", "<u>40.00 (0.00)</u>",
         "<strong>55.50 (0.71)</strong>"],
        ["fedavg:default", "<u>60.00</u>", "<strong>50.00</strong>", "<u>55.00</u>"],
        ["fedprox:default", "30.00", "20.00", "25.00"],
    ]  # fmt: skip
    best = _rows(accuracy_table(groups, ("dark",), "best"))
    assert [row[1] for row in best] == ["<u>71.00 (1.41)</u>", "<strong>90.00</strong>", "30.00"]


def test_one_group_alone_is_not_praised(groups):
    [row] = _rows(accuracy_table(groups[:1], ("dark",), "last"))
    assert row[1:] == ["71.00 (1.41)", "55.50 (0.71)"]


def test_costs_are_of_a_client_in_a_round_and_of_a_run(groups):
    first = _rows(cost_table(groups))[0]
    # Three clients send 100, 101 and 102 bytes in each of two rounds of two seconds.
    assert first == ["dapperfl:default", "8", "10", "1.00 k", "101 B", "200 B", "606 B", "0:04"]


def test_levels_have_their_share_and_their_accuracy_over_seeds(groups):
    rows = _rows(level_table(groups[:1]))
    assert [row[0].replace("\u00a0", " ") for row in rows] == [
        f"dapperfl:default, ρ = {rho}" for rho in ("0", "0.5", "0.8")
    ]
    # The made runs give a level the last dark accuracy less 10 rho: 62 and 64 at rho = 0.8.
    assert rows[2][1:] == ["200", "20.0 %", "5", "6", "7 B", "63.00 (1.41)"]
