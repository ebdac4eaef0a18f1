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
    assert "no level trains its round in 0 s: fewer train.epochs, a smaller net" in done.stdout


def test_pictures_are_by_default_the_most_that_a_device_is_dealt(call):
    done = call("levels", *SMALL)
    assert "a device of 19 pictures" in done.stdout


def test_a_narrow_terminal_shows_whole_words(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = call("levels", *SMALL)
    assert "…" not in done.stdout
    assert all(word in done.stdout for word in ("parameters", "received", "trains"))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("--pictures", "1"), 2),
        (("--within", "-1"), 2),
        (("--set", "net.widht=3"), 2),
        (("--set", "fleet.rhos=[0.99999]"), 1),
    ],
)
def test_a_mistake_ends_with_a_code(call, wrong, code):
    done = call("levels", *SMALL, *wrong)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
