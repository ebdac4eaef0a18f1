"""What is tried next: seeded, within the space, and learnt from all trials that have a score."""

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config
from dapperfl.lab.tuning.sampling import (
    choose_sampler,
    final_scores,
    propose,
    require_optuna,
    seen_study,
)
from dapperfl.lab.tuning.space import parse_space
from dapperfl.lab.tuning.trials import Plan, SamplerName, State, Trial

require_optuna()


def trial(number: int, state: State, score: float | None, steps=(), **values) -> Trial:
    given = {f"method.{key}": value for key, value in values.items()}
    return Trial(number, state, given, score, dict(enumerate(steps, start=1)), 1.0, {})


def plan(*space: str, sampler: SamplerName = "tpe", seed: int = 0) -> Plan:
    config = Config(seed=seed)
    return Plan(config, parse_space(space, config), (seed,), sampler)


def test_a_stopped_trial_counts_with_the_median_gain_of_the_complete_ones():
    trials = [
        trial(0, "complete", 60.0, (20, 40, 60)),
        trial(1, "complete", 90.0, (30, 50, 90)),
        trial(2, "complete", 80.0, (10, 70, 80)),
        trial(3, "stopped", 5.0, (1, 5)),  # gains after round 2: 20, 40, 10; the median is 20
        trial(4, "stopped", 97.0, (97,)),  # after round 1: 40, 60, 70; yet nothing is above 100
        trial(5, "failed", None),
    ]
    assert final_scores(trials) == {0: 60.0, 1: 90.0, 2: 80.0, 3: 25.0, 4: 100.0}
    assert final_scores(trials[3:4]) == {3: 5.0}


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_the_same_question_has_the_same_answer_in_the_space(sampler):
    asked = plan("method.gamma=log(1e-4,1)", "method.recovery={paper,gated}", sampler=sampler)
    trials = [
        trial(n, "complete", float(n), gamma=10.0 ** (n - 4), recovery="paper") for n in range(4)
    ]
    first = propose(asked, 4, trials, [])
    assert first is not None
    assert first == propose(asked, 4, trials, [])
    assert 1e-4 <= first["method.gamma"] <= 1
    assert first["method.recovery"] in ("paper", "gated")


def test_the_seed_and_the_number_decide_the_random_draws():
    space = "method.gamma=log(1e-4,1)"
    draws = [
        propose(plan(space, seed=seed), number, [], []) for seed in (0, 1) for number in (1, 2)
    ]
    assert len({draw["method.gamma"] for draw in draws if draw}) == 4


def test_a_sampler_that_insists_on_what_was_tried_is_overruled():
    asked = plan("method.alpha_0=0..1", sampler="gp")
    trials = [trial(n, "complete", 10.0 * n, alpha_0=n / 4) for n in range(5)]
    first = propose(asked, 5, trials, [])
    assert first is not None
    assert first not in [each.values for each in trials]


def test_a_gaussian_process_goes_where_the_score_is_high():
    asked = plan("method.alpha_0=0..1", sampler="gp")
    trials = [
        trial(n, "complete", 100 - 100 * (n / 10 - 0.7) ** 2, alpha_0=n / 10) for n in range(11)
    ]
    found = propose(asked, 11, trials, [])
    assert found is not None
    assert abs(found["method.alpha_0"] - 0.7) < 0.1


def test_nothing_is_tried_twice_and_few_choices_are_soon_used_up():
    asked = plan("method.recovery={paper,gated,zero}")
    trials = [
        trial(0, "complete", 50.0, recovery="gated"),
        trial(1, "failed", None, recovery="zero"),
    ]
    assert propose(asked, 2, trials, []) == {"method.recovery": "paper"}
    assert propose(asked, 2, trials, [{"method.recovery": "paper"}]) is None


def test_values_outside_the_space_are_not_learnt_from():
    asked = plan("method.gamma=0..1")
    trials = [trial(0, "complete", 50.0, gamma=5.0), trial(1, "complete", 60.0, gamma=0.5)]
    seen = seen_study(asked, trials).get_trials()
    assert [(each.params, each.value) for each in seen] == [({"method.gamma": 0.5}, 60.0)]


def test_what_is_being_tried_counts_as_bad_as_the_worst():
    asked = plan("method.gamma=0..1")
    trials = [trial(0, "complete", 50.0, gamma=0.1), trial(1, "complete", 60.0, gamma=0.5)]
    seen = seen_study(asked, trials, [{"method.gamma": 0.9}]).get_trials()
    assert (seen[-1].params, seen[-1].value) == ({"method.gamma": 0.9}, 50.0)
    assert seen_study(asked, [], [{"method.gamma": 0.9}]).get_trials() == []


def test_few_trials_are_for_the_gaussian_process():
    assert choose_sampler("auto", 20) == "gp"
    assert choose_sampler("auto", 200) == "tpe"
    assert choose_sampler("tpe", 20) == "tpe"
    with pytest.raises(ConfigError, match='sampler = "grid": expected "auto", "tpe" or "gp"'):
        choose_sampler("grid", 20)


def test_without_optuna_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ConfigError, match=r'run: pip install "dapperfl\[tune\]"'):
        require_optuna()
