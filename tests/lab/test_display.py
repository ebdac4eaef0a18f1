"""What a user sees, on wide and narrow terminals and in pipes."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from dapperfl.core.messages import Device
from dapperfl.lab.display import Progress, clock, header, human, results, watched
from dapperfl.lab.experiment import opened, run
from dapperfl.lab.records import Absence, RoundLine

LINE = RoundLine(
    round=1,
    accuracy={"handwriting": 51.26, "street": 20.0},
    mean=35.63,
    loss=1.2345,
    seconds=4.0,
    costs={},
    left_out=(Absence(3, "its loss was nan"),),
)


def _console(width: int, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, highlight=False, _environ={}
    )


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_header_and_results_fit_the_terminal(toy, tmp_path, width):
    console = _console(width)
    with opened(toy("rounds=1"), tmp_path / "run") as experiment:
        console.print(header(experiment))
    console.print(results(run(toy("rounds=1"), tmp_path / "run", resume=True)))
    text = _text(console)
    assert max(map(len, text.splitlines())) <= width
    assert "dapperfl (default) on tests.lab.toy_world:load, convnet of width 8" in text
    for word in ("device", "dark", "samples", "best round", "mean of last five", "global (mean)"):
        assert word in text
    for word in ("parameters", "of dense", "100.0 %", "MACs", "train FLOPs", "accuracy", "kB"):
        assert word in text
    assert "…" not in text
    told = " ".join(text.split())  # a narrow terminal has it on two lines
    assert "3 classes: red, green, blue; devices train on 57 of the 128 pictures there are" in told


def test_the_header_says_how_many_pictures_take_part(toy, tmp_path):
    console = _console(200)
    settings = ("rounds=1", "data.fraction=1", "fleet.devices=2")
    with opened(toy(*settings), tmp_path / "run") as experiment:
        console.print(header(experiment))
        world = experiment.simulator.federation
        names = (*(f"kind {n}" for n in range(9)), "line\nbreak", "last")
        experiment.simulator.federation = replace(world, classes=names, available=2000)
        console.print(header(experiment))
    assert "blue; devices train on all 128 pictures there are\n" in _text(console)
    assert "11 classes: kind 0, kind 1" in _text(console)
    assert "kind 8, line break and 1 more; devices train on 128 of the 2,000" in _text(console)


def test_a_large_fleet_is_not_listed_in_full(toy, tmp_path):
    console = _console(80)
    with opened(toy("rounds=1"), tmp_path / "run") as experiment:
        fleet = tuple(Device(i, "dark", 0.5, 10) for i in range(1000))
        server = replace(experiment.snapshot.server, fleet=fleet)
        experiment.snapshot = replace(experiment.snapshot, server=server)
        console.print(header(experiment))
    assert "… and 980 more, all in allocation.json" in _text(console)
    assert len(_text(console).splitlines()) < 40


def test_a_pipe_gets_one_plain_line_a_round(toy, tmp_path):
    console = _console(80)
    with (
        opened(toy("rounds=2"), tmp_path / "run") as experiment,
        watched(console, experiment) as show,
    ):
        show(LINE)
        show(replace(LINE, round=2, left_out=(), loss=None))
        show(replace(LINE, accuracy={"two\nlines": 1.0}, left_out=()))
    *lines, odd = _text(console).splitlines()
    assert "  two lines 1.0  loss" in odd
    assert lines == [
        "round 1/2  mean 35.6  handwriting 51.3  street 20.0  loss 1.234  4.0 s  0:04 left"
        "  without device 3",
        "round 2/2  mean 35.6  handwriting 51.3  street 20.0  loss -  4.0 s  0:00 left",
    ]


def test_a_terminal_gets_a_live_view_with_last_and_best(toy, tmp_path):
    console = _console(80, terminal=True)
    with (
        opened(toy("rounds=4"), tmp_path / "run") as experiment,
        watched(console, experiment) as show,
    ):
        show(replace(LINE, accuracy={"handwriting": 60.0, "street": 10.0}))
        show(LINE)
    text = _text(console)
    assert "\x1b[" in text
    assert "round 2/4" in text
    assert "60.0" in text
    assert "0:08 left" in text


def test_rounds_of_an_earlier_process_do_not_count_for_the_speed():
    progress = Progress(10, [replace(LINE, seconds=1000.0)] * 4)
    assert progress.seconds_left() is None
    progress.add(LINE)
    assert progress.seconds_left() == pytest.approx(20.0, abs=0.5)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (1000, "1.00 k"),
        (9994, "9.99 k"),
        (9996, "10.0 k"),
        (99_960, "100 k"),
        (999_600, "1.00 M"),
        (4_903_242, "4.90 M"),
        (254_170_000, "254 M"),
        (5.6e9, "5.60 G"),
    ],
)
def test_counts_have_three_digits(number, text):
    assert human(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3661, "1:01:01")])
def test_durations_read_like_a_clock(seconds, text):
    assert clock(seconds) == text
