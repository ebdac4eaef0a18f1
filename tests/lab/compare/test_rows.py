"""A row against the rounds it is made of, by hand."""

from dataclasses import replace

import pytest

from dapperfl.core.messages import ClientCost
from dapperfl.errors import CheckpointError
from dapperfl.lab.compare.output import comparison
from dapperfl.lab.compare.planned import Base, plan_runs
from dapperfl.lab.compare.rows import (
    MARKS,
    domains_of,
    read_rows,
    relabelled,
    round_rows,
    row_of,
    write_rows,
)
from dapperfl.lab.compare.variants import Variant
from dapperfl.lab.records import Absence, RoundLine

SUMMARY = {
    "levels": [
        {"rho": 0.0, "parameters": 90, "macs": 8, "mean_accuracy": 50.0},
        {"rho": 0.8, "parameters": 20, "macs": 3, "mean_accuracy": 40.0},
    ],
    "versions": {"dapperfl": "1", "torch": "2", "commit": "abc"},
}


def _line(number: int, dark: float, light: float, **more) -> RoundLine:
    costs = {
        0: ClientCost(9, 90, 100, 1000, 30, 70),
        1: ClientCost(9, 10, 200, 3000, 10, 50),
    }
    accuracy = {"dark": dark, "light": light}
    return RoundLine(number, accuracy, (dark + light) / 2, 0.1, 1.5, costs, (), **more)


HEAD = "base,label,settings,method,preset,seed,id"
LINES = [_line(1, 10, 30), _line(2, 40, 20), _line(3, 20, 30)]


@pytest.fixture
def run():
    [planned] = plan_runs(Base("demo", None), [Variant("fedavg")], [4])
    return planned


def test_a_row_says_what_the_rounds_came_to(run):
    row = row_of(run, SUMMARY, LINES)
    assert list(row)[:6] == ["method", "preset", "seed", "best", "last", "last5"]
    assert [row[name] for name in list(row)[:6]] == [
        "fedavg", "default", "4", "30.0000", "25.0000", "25.0000",  # means 20, 30, 25
    ]  # fmt: skip
    assert [row[f"dark_{mark}"] for mark in ("best", "last", "last5")] == [
        "40.0000", "20.0000", "23.3333",
    ]  # fmt: skip
    assert (row["parameters"], row["flops"]) == ("50", "2000")
    assert (row["bytes"], row["bytes_up"], row["bytes_down"]) == ("80", "20", "60")
    assert (row["peak_parameters"], row["seconds"]) == ("200", "4.5")
    assert (row["weakest_parameters"], row["weakest_accuracy"]) == ("20", "40.0000")
    assert (row["torch"], row["commit"], row["id"]) == ("2", "abc", run.id)
    assert domains_of(row) == ["dark", "light"]
    assert "validation" not in row


def test_what_devices_keep_aside_has_a_column_of_its_own(run):
    lines = [_line(1, 1, 1, validation={"dark": 10.0, "light": 20.0})]
    assert row_of(run, SUMMARY, lines)["validation"] == "15.0000"


def test_a_blind_run_has_no_other_accuracy_than_on_what_is_kept_aside(run):
    config = run.config
    blind = replace(config, data=replace(config.data, reserve=5, blind=True))
    row = row_of(replace(run, config=blind), SUMMARY, LINES)
    assert row["validation"] == row["last5"] == row_of(run, SUMMARY, LINES)["last5"]
    assert row["blind"] == "True"


def test_who_was_left_out_is_counted_among_all_who_were_asked(run):
    absent = Absence(2, "it broke"), Absence(1, "its moments were nan")  # 1 had trained before
    row = row_of(run, SUMMARY, [replace(LINES[0], left_out=absent), *LINES[1:]])
    assert (row["left_out"], row["client_rounds"]) == ("2", "7")
    assert (row_of(run, SUMMARY, LINES)["left_out"]) == "0"


def test_rows_of_several_benchmarks_leave_each_others_domains_empty(run, tmp_path):
    row = row_of(run, SUMMARY, LINES)
    other = {name: value for name, value in row.items() if not name.startswith("light")}
    path = tmp_path / "rows.csv"
    write_rows(path, [row, {**other, "noon_best": "1", "noon_last": "2", "noon_last5": "3"}])
    head = path.read_text().splitlines()[0].split(",")
    start = ["method", "preset", "seed"]
    marks = ["best", "last", "last5"]
    domains = [f"{name}_{mark}" for name in ("dark", "light", "noon") for mark in marks]
    assert head[:19] == [*start, *marks, *domains, "parameters", "flops", "bytes", "seconds"]
    first, second = read_rows(path)
    assert domains_of(first) == ["dark", "light"]
    assert domains_of(second) == ["dark", "noon"]
    assert {name: first[name] for name in row} == row


def test_rounds_are_kept_one_by_one(run):
    rows = round_rows(run, LINES)
    assert [(row["round"], row["global"], row["dark"]) for row in rows] == [
        ("1", "20.0000", "10.0000"), ("2", "30.0000", "40.0000"), ("3", "25.0000", "20.0000"),
    ]  # fmt: skip


def test_a_domain_with_the_name_of_another_column_has_one_of_its_own(run, tmp_path):
    line = replace(LINES[0], accuracy={"seed": 10.0, "global": 30.0, "street": 20.0})
    write_rows(tmp_path / "rounds.csv", round_rows(run, [line]))
    [row] = read_rows(tmp_path / "rounds.csv")
    assert (row["seed"], row["global"], row["street"]) == ("4", "20.0000", "20.0000")
    assert (row["seed (domain)"], row["global (domain)"]) == ("10.0000", "30.0000")


def test_another_table_gives_a_row_its_own_label(run):
    [other] = plan_runs(Base("b", None), [Variant("fedavg", label="mine")], [4])
    row = relabelled(row_of(run, SUMMARY, LINES), other)
    assert (row["base"], row["label"], row["best"]) == ("b", "mine", "30.0000")


@pytest.mark.parametrize(
    "text",
    ["a,b\n1,2\n", f"{HEAD}\n1,2\n", f"{HEAD}\n1,2,3,4,5,6,7,8\n", "base,label,seed,id\n1,2,3,4\n"],
)
def test_a_file_of_another_kind_is_refused(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="row 1 is damaged"):
        read_rows(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ({"seed": "1.5"}, "seed"),
        ({"best": ""}, "best"),
        ({"dark_last5": "12,3"}, "dark_last5"),
        ({"flops": "many"}, "flops"),
        ({"rounds": ""}, "rounds"),
        ({"best": "nan"}, "best"),
        ({"dark_last": "inf"}, "dark_last"),
        ({"peak_parameters": "many"}, "peak_parameters"),
    ],
)
def test_a_damaged_number_is_named(run, tmp_path, cells, column):
    path = tmp_path / "rows.csv"
    row = dict(row_of(run, SUMMARY, LINES))
    write_rows(path, [row])
    assert len(read_rows(path)) == 1
    write_rows(path, [row, {**row, **cells}])
    with pytest.raises(CheckpointError, match=f"row 2 is damaged: {column} is no number"):
        read_rows(path)


def test_a_file_that_a_spreadsheet_has_saved_is_read(run, tmp_path):
    write_rows(tmp_path / "rows.csv", [row_of(run, SUMMARY, LINES)])
    (tmp_path / "saved.csv").write_text((tmp_path / "rows.csv").read_text(), encoding="utf-8-sig")
    assert read_rows(tmp_path / "saved.csv") == read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize("column", ["best", "dark_best", "dark_last5"])
def test_a_run_without_a_number_that_a_table_needs_is_named(run, column):
    row = row_of(run, SUMMARY, LINES)
    empty = {name: "" if name == column else cell for name, cell in row.items()}
    lacking = {name: cell for name, cell in row.items() if name != column}
    for given in (empty, lacking):
        with pytest.raises(CheckpointError, match=f"demo: fedavg, seed 5 has no {column}"):
            comparison([row, {**given, "seed": "5"}])
    bare = {
        name: cell
        for name, cell in row.items()
        if not name.endswith(tuple(f"_{mark}" for mark in MARKS))
    }
    with pytest.raises(CheckpointError, match="demo: fedavg has no accuracy of any domain"):
        comparison([bare])


def test_costs_that_older_rows_do_not_have_are_left_open(run):
    costs = ("parameters", "peak_parameters", "flops", "bytes_up", "bytes_down", "seconds")
    row = row_of(run, SUMMARY, LINES)
    document = comparison([{name: cell for name, cell in row.items() if name not in costs}])
    [table] = [each for each in document.tables if each.title.endswith("costs")]
    assert [cell.text for cell in table.rows[0][1:]] == ["–"] * 6


def test_a_damaged_round_is_named(run, tmp_path):
    path = tmp_path / "rounds.csv"
    rows = round_rows(run, LINES)
    write_rows(path, rows)
    assert len(read_rows(path)) == len(rows)
    write_rows(path, [{**rows[0], "dark": "?"}])
    with pytest.raises(CheckpointError, match="row 1 is damaged: dark is no number"):
        read_rows(path)
