"""How a search looks: lines in a pipe, a live view on a terminal, a table at the end."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dapperfl.lab.config import Config
from dapperfl.lab.tuning import Progress, Trial, TuneResult
from dapperfl.lab.tuning.display import Board, outcome, watched_search
from dapperfl.lab.tuning.space import parse_space

GAMMA = {"method.gamma": 0.123456}
START = Trial(0, "complete", {"method.gamma": 9.0}, 50.0, {}, 1.0, {"dark": 40.0, "light": 60.0})
BEST = Trial(1, "complete", GAMMA, 70.0, {}, 1.0, {"dark": 65.0, "light": 75.0})
STOPPED = Trial(2, "stopped", GAMMA, 20.0, {}, 1.0, {})
FAILED = Trial(3, "failed", GAMMA, None, {}, 1.0, {}, "it broke")


def _text(thing) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_a_line_for_every_trial():
    console = Console(file=io.StringIO(), width=40)
    with watched_search(console, 3, 5) as show:
        for event in (Progress(0, GAMMA), START, BEST, STOPPED, FAILED):
            show(event)
    assert isinstance(console.file, io.StringIO)
    lines = [line.split("  ") for line in console.file.getvalue().splitlines()]
    assert [line[:4] for line in lines] == [
        ["start", "complete", "50.00 %", "method.gamma=9"],
        ["trial 1/3", "complete", "70.00 %", "method.gamma=0.1235"],
        ["trial 2/3", "stopped", "20.00 %", "method.gamma=0.1235"],
        ["trial 3/3", "failed", "it broke", "method.gamma=0.1235"],
    ]
    bests = [line[4] for line in lines]
    assert bests == ["best 50.00 % (start)"] + ["best 70.00 % (trial 1)"] * 3
    assert lines[-1][5] == "0:00 left"


def test_the_live_view_shows_what_runs_and_the_best():
    board = Board(trials=3, rounds=5)
    assert "0/4 trials" in _text(board)
    board.add(Progress(0, {"method.gamma": 9.0}))
    board.add(START)
    board.add(Progress(1, GAMMA, 2, 33.333))
    text = _text(board)
    for words in ("1/4 trials", "best 50.00 % (start)", "2/5", "33.33", "method.gamma=0.1235"):
        assert words in text


def test_trials_of_an_earlier_process_say_nothing_about_speed():
    board = Board(trials=3, rounds=5)
    board.add(START)
    assert board.seconds_left() is None
    board.add(Progress(1, GAMMA))
    assert board.seconds_left() is None
    board.add(BEST)
    assert board.seconds_left() is not None


def _result(*trials: Trial, best: Trial) -> TuneResult:
    space = parse_space(["method.gamma=0..1"], Config())
    return TuneResult(Path("out"), space, Config(), START, best, trials)


def test_the_end_is_the_start_against_the_best():
    text = _text(outcome(_result(START, BEST, STOPPED, FAILED, best=BEST)))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    assert ["method.gamma", "9", "0.1235"] in rows
    assert ["dark", "40.00", "65.00", "+25.00"] in rows
    assert ["mean", "50.00", "70.00", "+20.00"] in rows
    assert "trials beside the start: 1 complete, 1 stopped, 1 failed" in text


def test_devices_that_were_left_out_of_what_is_shown_are_told():
    assert "left out" not in _text(outcome(_result(START, BEST, best=BEST)))
    lame = replace(BEST, left_out=7)
    text = _text(outcome(_result(START, lame, best=lame)))
    assert "client rounds whose device was left out: best 7" in text


def test_a_search_in_vain_says_so():
    text = _text(outcome(_result(START, STOPPED, best=START)))
    assert "0 complete, 1 stopped, 0 failed; none was better" in text
