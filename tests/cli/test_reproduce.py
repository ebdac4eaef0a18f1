"""`dapperfl reproduce` as a user meets it; the runs are written by hand."""

import csv
import json

import pytest
from tests.lab.compare.made_up import weights

from dapperfl.lab.reproduce import product
from dapperfl.lab.reproduce.plans import PLANS

FAST = ["--quick", "--set", "rounds=2", "--out", "o"]
DOMAINS = ("dark", "light")
# name: rows with one seed, and the axes of each figure as (title, horizontal, vertical)
EXPECTED: dict[str, tuple[int, dict[str, list[tuple[str, str, str]]]]] = {
    "table-digits": (15, {}),
    "table-office": (15, {}),
    "footprint": (
        2 * 4 * 4,
        {"": [(base, "pruning ratio ρ of every device", "accuracy [%]")
              for base in ("digits", "office")]},
    ),
    "ablation": (2 * 2 * 4, {}),
    **{
        name: (
            2 * 2 * 5,
            {"": [(method, field, "global accuracy [%]")
                  for method in ("dapperfl:default", "dapperfl:paper")]},
        )
        for name, field in (("alpha0", "alpha_0"), ("alpha-min", "alpha_min"),
                            ("epsilon", "epsilon"), ("gamma", "gamma"))
    },
    "epsilon-search": (6, {"": [("", "epsilon", "global accuracy [%]")]}),
    "curves": (
        2 * 10,
        {
            "": [(base, "round", "global accuracy [%]") for base in ("digits", "office")],
            "-domains": [(f"{base}: {domain}", "round", "accuracy [%]")
                         for base in ("digits", "office") for domain in DOMAINS],
        },
    ),
    "rates": (2 * 9 * 3, {}),
    "equal": (
        2 * 9,
        {"": [(base, "accuracy of the last five rounds [%]", "") for base in ("digits", "office")]},
    ),
}  # fmt: skip


@pytest.fixture
def cli(call):
    return lambda *arguments: call("reproduce", *arguments)


@pytest.fixture
def drawn(monkeypatch):
    """Keep the figures that are written."""
    found = {}
    real = product.write_product

    def write(made, stem, *more):
        found[stem.name] = made.figures
        return real(made, stem, *more)

    monkeypatch.setattr("dapperfl.lab.reproduce.render.write_product", write)
    return found


def _read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_name_is_listed(cli):
    lines = cli("--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(PLANS) == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_name_has_its_rows_its_page_and_its_axes(cli, scheduler, drawn, tmp_path, name):
    number, figures = EXPECTED[name]
    done = cli(name, *FAST, "--seeds", "3", *(["--trials", "6"] if "search" in name else []))
    assert done.exit_code == 0, done.output
    rows = _read(tmp_path / f"o/{name}.csv")
    assert len(rows) == number
    assert list(rows[0])[:6] == ["method", "preset", "seed", "best", "last", "last5"]
    # seed 3: 13 and 23, then 23 and 23
    assert {(row["seed"], row["best"], row["dark_best"]) for row in rows} == {
        ("3", "23.0000", "23.0000")
    }
    assert len(_read(tmp_path / f"o/{name}-rounds.csv")) == 2 * number
    found = {
        ending: [(axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
        for ending, figure in drawn[name].items()
    }
    assert found == figures
    for ending in figures:
        assert (tmp_path / f"o/{name}{ending}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"o/{name}{ending}.pdf").read_bytes().startswith(b"%PDF")
    page = (tmp_path / f"o/{name}.md").read_text()
    assert "minidigits, not on the paper's data" in page
    assert r"\bottomrule" in (tmp_path / f"o/{name}.tex").read_text()
    assert weights(tmp_path) == []


def test_pieces_make_one_table_in_the_plans_order(cli, scheduler, tmp_path):
    cli("table-digits", *FAST, "--seeds", "1", "--methods", "moon")
    cli("table-digits", *FAST, "--seeds", "0", "--methods", "moon")
    cli("table-digits", *FAST, "--seeds", "0", "--methods", "fedavg,mine=moon{method.mu=9}")
    done = cli("table-digits", *FAST, "--seeds", "0,1", "--limit", "2")
    assert done.exit_code == 0, done.output
    rows = _read(tmp_path / "o/table-digits.csv")
    assert [(row["label"], row["seed"]) for row in rows] == [
        ("fedavg", "0"), ("fedavg", "1"), ("moon", "0"), ("moon", "1"), ("fedsr", "0"),
        ("mine", "0"),
    ]  # fmt: skip


def test_a_run_has_one_row_under_the_plans_name(cli, scheduler, tmp_path):
    cli("table-digits", *FAST, "--seeds", "0", "--methods", "dapperfl")
    cli("table-digits", *FAST, "--seeds", "0", "--methods", "dapperfl:default")
    cli("table-digits", *FAST, "--seeds", "0", "--methods", "dapperfl")
    [row] = _read(tmp_path / "o/table-digits.csv")
    assert row["label"] == "dapperfl:default"


def test_the_rates_that_were_found_on_the_way_say_where_they_come_from(cli, scheduler, tmp_path):
    cli("equal", *FAST, "--only", "office", "--seeds", "0", "--methods", "fedavg,fedavg_small")
    [rates], [equal] = (
        json.loads((tmp_path / f"o/{name}.json").read_text()) for name in ("rates", "equal")
    )
    assert rates["command"] == equal["command"]
    assert (rates["runs"], equal["runs"]) == (2 * 3, 2)


def test_nothing_done_is_no_table(cli, scheduler, tmp_path):
    done = cli("gamma", *FAST, "--limit", "0")
    assert (done.exit_code, done.stdout) == (0, "no run is finished yet, so there is no table\n")
    assert scheduler.begun == []


def test_names_share_their_runs_also_when_only_the_files_are_left(cli, scheduler, tmp_path):
    cli("table-digits", *FAST, "--seeds", "0", "--methods", "moon,fpl")
    (tmp_path / "o/runs").rename(tmp_path / "away")
    scheduler.begun.clear()
    curves = ["curves", *FAST, "--seeds", "0", "--only", "digits", "--methods", "moon,fpl"]
    assert cli(*curves).exit_code == 0
    assert scheduler.begun == []
    (tmp_path / "o/table-digits-rounds.csv").unlink()
    (tmp_path / "o/curves-rounds.csv").unlink()
    cli(*curves)
    assert len(scheduler.begun) == 2  # curves need the rounds


def test_rows_of_other_settings_are_not_mixed_in(cli, scheduler, tmp_path):
    cli("gamma", *FAST, "--seeds", "0", "--only", "digits")
    before = (tmp_path / "o/gamma.csv").read_text()
    done = cli("gamma", "--quick", "--set", "rounds=1", "--out", "o")
    assert done.exit_code == 2
    assert "with other settings" in done.stderr
    assert (tmp_path / "o/gamma.csv").read_text() == before


def test_another_protocol_has_files_of_its_own(cli, scheduler, tmp_path):
    assert cli("table-office", *FAST, "--seeds", "0", "--methods", "moon").exit_code == 0
    done = cli("table-office", *FAST, "--seeds", "0", "--methods", "moon", "--protocol", "iid")
    assert done.exit_code == 0, done.output
    found = [_read(tmp_path / f"o/table-office{end}.csv")[0]["protocol"] for end in ("", "-iid")]
    assert found == ["fair", "iid"]


def test_the_files_are_made_again_from_the_csv_alone(cli, scheduler, tmp_path):
    cli("curves", *FAST, "--seeds", "0,1", "--methods", "fedavg,moon")
    written = {path.name: path.read_bytes() for path in (tmp_path / "o").glob("curves*")}
    assert len(written) == 9  # two CSV, log, md, tex, two figures twice
    for name in written:
        if not name.endswith((".csv", ".json")):
            (tmp_path / "o" / name).unlink()
    scheduler.begun.clear()
    done = cli("curves", "--from-csv", "o/curves.csv")
    assert done.exit_code == 0, done.output
    assert scheduler.begun == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "o").glob("curves*")} == written


@pytest.mark.parametrize("option", [["--only", "digits"], ["--seeds", "0"], ["--quick"]])
def test_options_that_a_csv_alone_would_ignore_are_refused(cli, scheduler, option):
    cli("curves", *FAST, "--seeds", "0", "--methods", "fedavg")
    done = cli("curves", "--from-csv", "o/curves.csv", *option)
    assert done.exit_code == 2
    assert f"shows all rows of the file: {option[0]} would be ignored" in done.stderr


def test_trials_are_for_a_search(cli, scheduler):
    done = cli("table-digits", *FAST, "--trials", "3")
    assert done.exit_code == 2
    assert "table-digits is no search: --trials would be ignored" in done.stderr
    assert scheduler.begun == []


def test_a_failed_run_is_named_and_the_code_is_one(cli, scheduler, tmp_path):
    scheduler.failing = {"digits: moon, seed 0"}
    done = cli("table-digits", *FAST, "--seeds", "0", "--methods", "fedavg,moon")
    assert done.exit_code == 1
    assert "error: digits: moon, seed 0 failed: it broke" in done.stderr
    assert "in no table: digits: moon, seed 0" in (tmp_path / "o/table-digits.md").read_text()


def test_a_wrong_name_is_one_line(cli, scheduler):
    done = cli("table-digit")
    assert done.exit_code == 2
    assert 'did you mean "table-digits"' in done.stderr


@pytest.mark.parametrize("option", ["--methods", "--seeds"])
def test_an_empty_list_is_refused_instead_of_running_all(cli, scheduler, option):
    done = cli("table-digits", *FAST, option, "")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert scheduler.begun == []
