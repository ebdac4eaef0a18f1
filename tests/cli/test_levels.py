"""`dapperfl levels` as somebody meets it who has to choose the level of a board."""

import re

import pytest
from tests.lab.conftest import TOY

SMALL = [part for each in TOY for part in ("--set", each)]


def _rows(text: str) -> list[list[str]]:
    """Return the cells of a printed table, without its heads."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_every_level_is_a_row_and_one_is_recommended(call, tmp_path):
    done = call("levels", *SMALL, "--pictures", "40", "--within", "1000")
    assert done.exit_code == 0, done.output
    assert "a device of 40 pictures, in a round on this machine" in done.stdout
    rows = _rows(done.stdout)
    assert [row[0] for row in rows] == ["0", "0.5", "0.8"]
    assert rows[0][2] == "100.0 %"
    assert all(re.fullmatch(r"\d+\.\d s", row[-1]) for row in rows)
    assert "rho = 0 is the largest net that trains its round in 1000 s" in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_deadline_of_the_config_is_the_limit_unless_another_is_given(call):
    done = call("levels", *SMALL, "--set", "deploy.deadline=77")
    assert "rho = 0 is the largest net that trains its round in 77 s" in done.stdout
    done = call("levels", *SMALL, "--within", "0")
    ways = "fewer train.epochs, a smaller net or a larger rho in fleet.rhos"
    assert f"no level trains its round in 0 s: try {ways}" in done.stdout


def test_only_what_would_help_is_advised(call):
    few = ("--set", "method=fedavg", "--set", "train.epochs=1")
    done = call("levels", *SMALL, *few, "--within", "0")
    assert "no level trains its round in 0 s: try a smaller net\n" in done.stdout


def test_a_method_that_asks_nobody_is_no_question_of_time(call):
    done = call("levels", *SMALL, "--set", "method=tests.lab.test_rehearsal:Nobody")
    assert done.exit_code == 0, done.output
    assert {row[-1] for row in _rows(done.stdout)} == {"never"}
    assert "no level takes part: in 2 rounds tests.lab.test_rehearsal:Nobody asked" in done.stdout
    assert "train.epochs" not in done.stdout


def test_nets_drawn_anew_each_round_are_told(call):
    said = "devices get other nets, or none, from round to round"
    done = call("levels", *SMALL, "--set", "method=nefl", "--set", "method.preset=official")
    assert done.stdout.count(said) == 1
    assert "the longest of the 8 rounds rehearsed" in done.stdout
    assert said not in call("levels", *SMALL, "--set", "method=nefl").stdout


def test_pictures_are_by_default_the_most_that_a_device_is_dealt(call):
    done = call("levels", *SMALL)
    assert "a device of 19 pictures" in done.stdout


LONG = ("--pictures", "16000000", "--set", "fleet.rhos=[0.3333,0.6667]")


@pytest.mark.parametrize("columns", ["20", "60", "80"])
def test_a_pipe_gets_the_whole_table_in_lines_of_its_own(call, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    done = call("levels", *SMALL, *LONG)
    assert "…" not in done.stdout
    assert "a device of 16,000,000 pictures, in a round on this machine" in done.stdout
    heads = [word.strip() for word in done.stdout.splitlines()[2].strip("┃").split("┃")]
    assert heads == [
        *["rho", "parameters", "of dense", "held", "MACs", "sent", "received", "trains"]
    ]
    assert [row[0] for row in _rows(done.stdout)] == ["0.3333", "0.6667"]
    assert all(re.fullmatch(r"[\d.]+ k?B", row[5]) for row in _rows(done.stdout))


@pytest.mark.parametrize("columns", ["10", "20", "40", "60", "80"])
def test_a_narrow_terminal_gets_everything_in_more_lines(call, monkeypatch, columns):
    whole = _rows(call("levels", *SMALL, *LONG).stdout)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes that for a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    shown = re.sub(r"\x1b\[[\d;]*m", "", call("levels", *SMALL, *LONG).stdout)
    assert "…" not in shown
    table = [line for line in shown.splitlines() if line[:1] in set("┏┃┡│└")]
    assert max(map(len, table)) <= max(int(columns), 17)  # a letter in each of eight cells
    rows = ["".join(cells) for cells in zip(*_rows(shown), strict=True)]
    for column, found in enumerate(rows[:-1]):  # times differ from call to call
        said = "".join(row[column] for row in whole)
        assert found.replace(" ", "") == said.replace(" ", "")
    assert re.fullmatch(r"(\d+:\d\d(:\d\d)?){2}", rows[-1])


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("--pictures", "1"), 2),
        (("--within", "-1"), 2),
        (("--within", "nan"), 2),
        (("--within", "inf"), 2),
        (("--set", "net.widht=3"), 2),
        (("--set", "fleet.rhos=[0.99999]"), 1),
    ],
)
def test_a_mistake_ends_with_a_code(call, wrong, code):
    done = call("levels", *SMALL, *wrong)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output


def test_a_limit_that_is_no_number_is_refused_in_a_line(call):
    done = call("levels", *SMALL, "--within", "nan")
    assert done.stderr == "error: --within nan: expected a number of seconds, such as 60\n"
