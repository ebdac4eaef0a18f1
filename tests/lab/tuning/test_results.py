"""What a study leaves beside itself, against small studies made by hand."""

import pytest

from dapperfl.lab.config import Config
from dapperfl.lab.tuning.drawing import draw_importance, draw_slices
from dapperfl.lab.tuning.results import importance, write_results
from dapperfl.lab.tuning.space import parse_space
from dapperfl.lab.tuning.trials import Plan, State, Trial, best_of

CONFIG = Config()
SPACE = parse_space(["method.gamma=log(1e-4,1)", "method.recovery={paper,gated}"], CONFIG)
PLAN = Plan(CONFIG, SPACE, (0,), "tpe")


def trial(number: int, state: State, score: float | None, gamma: float, recovery: str) -> Trial:
    values = {"method.gamma": gamma, "method.recovery": recovery}
    domains = {"dark": 50.0, "light": 60.5} if state == "complete" else {}
    error = "" if score is not None else "it broke, badly"
    return Trial(number, state, values, score, {1: 1.0, 2: score or 2.0}, 1.5, domains, error)


TRIALS = [
    trial(0, "complete", 55.25, 5.0, "zero"),
    trial(1, "complete", 80.0, 0.01, "paper"),
    trial(2, "stopped", 20.0, 0.5, "gated"),
    trial(3, "failed", None, 0.1, "gated"),
    trial(4, "complete", 80.0, 0.02, "gated"),
]


def test_trials_are_rows(tmp_path):
    write_results(CONFIG, [each.key for each in SPACE], TRIALS, tmp_path)
    assert (tmp_path / "trials.csv").read_text().splitlines() == [
        "trial,state,score,method.gamma,method.recovery,validation.dark,validation.light,"
        "rounds,seconds,error",
        "0,complete,55.25,5.0,zero,50.0,60.5,2,1.5,",
        "1,complete,80.0,0.01,paper,50.0,60.5,2,1.5,",
        "2,stopped,20.0,0.5,gated,,,2,1.5,",
        '3,failed,,0.1,gated,,,2,1.5,"it broke, badly"',
        "4,complete,80.0,0.02,gated,50.0,60.5,2,1.5,",
    ]


def test_the_best_is_complete_and_the_earliest_of_equals():
    assert best_of(TRIALS).number == 1
    assert best_of([trial(0, "complete", 10.0, 1, "paper"), trial(1, "stopped", 90.0, 1, "paper")]
                   ).number == 0  # fmt: skip


def test_slices_show_every_score_over_every_key():
    figure = draw_slices(SPACE, TRIALS)
    gamma, recovery = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["method.gamma", "method.recovery"]
    assert gamma.get_ylabel() == "validation accuracy [%]"
    assert (gamma.get_xscale(), recovery.get_xscale()) == ("log", "linear")
    assert [text.get_text() for text in recovery.get_xticklabels()] == ["paper", "gated"]
    dots = {dots.get_label(): dots.get_offsets().tolist() for dots in gamma.collections}
    assert dots["complete"] == [[0.02, 80.0]]
    assert dots["stopped early, where it was"] == [[0.5, 20.0]]
    assert dots["best"] == [[0.01, 80.0]]
    assert [5.0, 55.25] in [point for points in dots.values() for point in points]
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["complete", "stopped early, where it was", "start", "best"]


def test_importance_finds_the_one_key_that_matters():
    trials = [
        trial(number, "complete", 10.0 * (number % 4), 10.0 ** -(number % 4), recovery)
        for number, recovery in enumerate(["paper", "gated"] * 8)
    ]
    # Both recoveries meet every gamma equally often only over all sixteen.
    trials += [
        trial(16 + number, "complete", 10.0 * (number % 4), 10.0 ** -(number % 4), recovery)
        for number, recovery in enumerate(["gated", "paper"] * 8)
    ]
    shares = importance(PLAN, trials)
    assert list(shares) == ["method.gamma", "method.recovery"]
    assert shares["method.gamma"] > 0.95
    assert sum(shares.values()) == pytest.approx(1)


def test_of_few_or_equal_trials_nothing_is_said():
    assert importance(PLAN, TRIALS) == {}  # three lie in the space
    same = [trial(number, "complete", 50.0, 0.1**number, "paper") for number in range(5)]
    assert importance(PLAN, same) == {}
    (axes,) = draw_importance({}).axes
    assert [text.get_text() for text in axes.texts] == ["too few different trials to tell"]


def test_bars_are_in_percent_with_the_largest_on_top():
    (axes,) = draw_importance({"method.gamma": 0.75, "method.recovery": 0.25}).axes
    assert [bar.get_width() for bar in axes.patches] == [75.0, 25.0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "method.gamma",
        "method.recovery",
    ]
    assert axes.yaxis_inverted()
    assert [text.get_text().strip() for text in axes.texts] == ["75 %", "25 %"]
