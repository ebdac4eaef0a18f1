"""Trials in processes of their own: heard, stopped, replaced when they die."""

import os
import signal

import pytest

from dapperfl.lab.tuning import tune
from dapperfl.lab.tuning.hands import Elsewhere, Here, crew, ready
from dapperfl.lab.tuning.judging import Broken, Done, Judge, Step

pytestmark = pytest.mark.slow

SMALL = ["net.width=4", "train.batch_size=4", "data.fraction=0.6", "rounds=2"]


@pytest.fixture
def hand():
    made = Elsewhere(None, threads=1)
    yield made
    made.close()


def _hear(hand) -> Step | Done | Broken:
    assert ready([hand]) == [hand]
    message: Step | Done | Broken = hand.hear()
    return message


def test_a_process_says_what_this_one_would(toy, hand):
    config = toy(*SMALL, "data.validation=0.2")
    expected = list(Judge().judge(config, [1]))
    hand.begin(config, [1])
    for message in expected:
        assert _hear(hand) == message
        if isinstance(message, Step):
            hand.answer(go_on=True)


def test_a_stopped_hand_takes_the_next_trial(toy, hand):
    config = toy(*SMALL, "data.validation=0.2", "rounds=1000")
    hand.begin(config, [0])
    assert isinstance(_hear(hand), Step)
    hand.answer(go_on=False)
    hand.begin(toy(*SMALL, "data.validation=0.2", "fleet.rhos=[0.999999]"), [0])
    broken = _hear(hand)
    assert isinstance(broken, Broken)
    assert "0.999999" in broken.error


def test_a_process_that_dies_is_a_broken_trial_and_is_replaced(toy, hand):
    config = toy(*SMALL, "data.validation=0.2")
    hand.begin(config, [0])
    first = _hear(hand)
    os.kill(hand._process.pid, signal.SIGKILL)
    assert _hear(hand) == Broken("the process that tried it died with signal 9")
    hand.begin(config, [0])
    assert _hear(hand) == first


def test_one_worker_is_this_process(toy):
    with crew(1, toy()) as hands:
        assert [type(each) for each in hands] == [Here]
    with crew(2, toy()) as hands:
        assert [type(each) for each in hands] == [Elsewhere, Elsewhere]


def test_two_workers_find_what_their_values_deserve(toy, tmp_path):
    config = toy(*SMALL, "method.gamma=100")
    result = tune(config, ["method.gamma=log(1e-4,1)"], out=tmp_path, trials=5, workers=2)
    assert [trial.number for trial in result.trials] == [0, 1, 2, 3, 4, 5]
    complete = [trial for trial in result.trials if trial.state == "complete"]
    assert len(complete) >= 4
    for trial in complete:
        gamma = f"method.gamma={trial.values['method.gamma']!r}"
        *_, done = Judge().judge(toy(*SMALL, "data.validation=0.2", gamma), [0])
        assert isinstance(done, Done)
        assert trial.score == done.score
