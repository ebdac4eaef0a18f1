"""A trial is judged by what devices keep aside, and by nothing else."""

from statistics import fmean
from types import SimpleNamespace

import pytest

from dapperfl.lab.build import build, load_federation
from dapperfl.lab.tuning.judging import Broken, Done, Judge, Step, score_of
from tests.lab.tuning import poisoned_world

SMALL = ["net.width=4", "train.epochs=1", "data.fraction=0.6", "data.validation=0.2"]


def test_the_score_is_the_mean_over_domains_and_the_last_five_rounds():
    rounds = [{"dark": 90.0, "light": 90.0}] + [{"dark": n, "light": n + 10.0} for n in range(5)]
    # Means over domains of the last five: 5, 6, 7, 8, 9.
    assert score_of(rounds) == 7.0
    assert score_of(rounds[:2]) == (90 + 5) / 2


def test_a_trial_is_what_a_run_says_of_its_validation_data(toy):
    config = toy(*SMALL, "rounds=6")
    *steps, done = Judge().judge(config, [3, 4])
    own, scores, domains = [], [], []
    for seed in (3, 4):
        records = list(build(toy(*SMALL, "rounds=6", f"seed={seed}")).rounds())
        means = [fmean(record.validation.values()) for record in records]
        own += [fmean(means[max(0, end - 5) : end]) for end in range(1, 7)]
        scores.append(sum(means[1:]) / 5)
        domains.append(sum(record.validation["dark"] for record in records[1:]) / 5)
    found = {step.number: step.score for step in steps if isinstance(step, Step)}
    assert found == pytest.approx(dict(enumerate(own, start=1)))
    assert isinstance(done, Done)
    assert done.score == pytest.approx(fmean(scores))
    assert done.validation.keys() == {"dark", "light"}
    assert done.validation["dark"] == pytest.approx(fmean(domains))


def test_poisoned_test_sets_are_never_touched_and_change_nothing(toy):
    poisoned = f"data={poisoned_world.__name__}:load"
    with pytest.raises(AssertionError, match="looked at the test set"):
        build(toy(*SMALL, poisoned))
    assert list(Judge().judge(toy(*SMALL, poisoned), [0])) == list(Judge().judge(toy(*SMALL), [0]))


def test_with_nothing_aside_a_trial_cannot_be_judged(toy):
    (broken,) = Judge().judge(toy(f"data={poisoned_world.__name__}:load_small",
                                  "data.validation=0.01", "data.fraction=1"), [0])  # fmt: skip
    assert isinstance(broken, Broken)
    assert "no device keeps anything aside" in broken.error
    assert not broken.hopeless


def test_what_breaks_ends_the_trial_and_not_the_search(toy, monkeypatch):
    *_, broken = Judge().judge(toy(*SMALL, "train.lr=1e30", "rounds=5"), [0])
    assert isinstance(broken, Broken)
    assert broken.hopeless
    assert "nobody took part" in broken.error
    assert broken.traceback == ""
    monkeypatch.setattr("dapperfl.lab.tuning.judging.build_on", lambda *_: 1 / 0)
    (broken,) = Judge().judge(toy(*SMALL), [0])
    assert isinstance(broken, Broken)
    assert broken.error == "ZeroDivisionError: division by zero"
    assert "1 / 0" in broken.traceback


def test_devices_that_were_left_out_are_counted_over_all_seeds(toy, monkeypatch):
    rounds = [SimpleNamespace(round_num=n, accuracy={"dark": 9.0}, left_out=(0,)) for n in (1, 2)]
    made = SimpleNamespace(rounds=lambda: rounds)
    monkeypatch.setattr("dapperfl.lab.tuning.judging.build_on", lambda *_: made)
    *_, done = Judge().judge(toy(*SMALL, "rounds=2"), [0, 1])
    assert done == Done(9.0, {"dark": 9.0}, left_out=4)


def test_pictures_are_loaded_once_a_seed(toy, monkeypatch):
    loaded = []

    def load(config):
        loaded.append(config.seed)
        return load_federation(config)

    monkeypatch.setattr("dapperfl.lab.tuning.judging.load_federation", load)
    judge = Judge()
    for gamma in ("0", "1"):
        list(judge.judge(toy(*SMALL, "rounds=1", f"method.gamma={gamma}"), [0, 1]))
    list(judge.judge(toy(*SMALL, "rounds=1", "fleet.rhos=[0]"), [1]))
    assert loaded == [0, 1, 1]
