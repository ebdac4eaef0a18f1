"""What to try next. Optuna's samplers see a study of our making, built anew for every question.

So a continued search proposes what an uninterrupted one would have, and every sampler learns from
stopped trials: they count with what they had reached and what others gained from there.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from dapperfl.core.rng import derive_seed
from dapperfl.errors import ConfigError
from dapperfl.lab.tuning.space import Choice, Dimension
from dapperfl.lab.tuning.trials import Plan, SamplerName, Trial

if TYPE_CHECKING:
    import optuna

_TRIES = 200  # at something new, in a space of few choices
_RANDOM_TRIALS = 10  # before TPE has something to learn from


def require_optuna() -> None:
    """Say what to install where Optuna is missing."""
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            f"tuning needs a package that is not installed ({error.name}); "
            'run: pip install "dapperfl[tune]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would tell every trial a second time


def propose(
    plan: Plan, number: int, trials: Sequence[Trial], running: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the values of a new trial, or None where all choices have been tried.

    Args:
        plan: What is searched, and how.
        number: Of the new trial; it decides the random draws.
        trials: What has been tried, failed ones included.
        running: The values that are being tried; they count as bad, to look elsewhere.
    """
    from optuna import create_study
    from optuna.samplers import RandomSampler

    tried = [dict(trial.values) for trial in trials] + [dict(values) for values in running]
    seed = derive_seed(plan.config.seed, "tune", number) % 2**32
    study = seen_study(plan, trials, running, seed)
    for _ in range(_TRIES):
        drawn = study.ask(distributions(plan.space)).params
        values = {each.key: each.value(drawn[each.key]) for each in plan.space}
        if values not in tried:
            return values
        if not isinstance(study.sampler, RandomSampler):  # it insists on what it knows: take any
            study = create_study(sampler=RandomSampler(seed))
    return None


def seen_study(
    plan: Plan,
    trials: Sequence[Trial],
    running: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
) -> "optuna.Study":
    """Return a study in memory of the trials that lie in the space, with their final scores."""
    import optuna

    study = optuna.create_study(direction="maximize", sampler=_sampler(plan, seed))
    scores = final_scores(trials)
    seen = [(trial.values, scores[trial.number]) for trial in trials if trial.number in scores]
    if seen:
        lowest = min(score for _, score in seen)
        seen += [(values, lowest) for values in running]
    for values, score in seen:
        drawn = {each.key: each.drawn(values[each.key]) for each in plan.space}
        if None not in drawn.values():  # the config's own values may lie outside
            made = optuna.trial.create_trial(
                params=drawn, distributions=distributions(plan.space), value=score
            )
            study.add_trial(made)
    return study


def final_scores(trials: Sequence[Trial]) -> dict[int, float]:
    """Return scores by trial number; stopped trials get those that they might have reached.

    That is what they had, and what complete trials gained from the same round on, in the median.
    """
    complete = [trial for trial in trials if trial.state == "complete" and trial.score is not None]
    scores = {trial.number: trial.score or 0.0 for trial in complete}
    for trial in trials:
        if trial.state == "stopped":
            last = max(trial.steps, default=0)
            gains = [(one.score or 0.0) - one.steps[last] for one in complete if last in one.steps]
            gain = median(gains) if gains else 0.0
            scores[trial.number] = min(100.0, (trial.score or 0.0) + gain)
    return scores


def distributions(space: Sequence[Dimension]) -> dict[str, "optuna.distributions.BaseDistribution"]:
    """Return the space in Optuna's words."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for each in space:
        if isinstance(each, Choice):
            found[each.key] = CategoricalDistribution(each.texts)
        elif each.whole:
            found[each.key] = IntDistribution(int(each.low), int(each.high), log=each.log)
        else:
            found[each.key] = FloatDistribution(each.low, each.high, log=each.log)
    return found


def _sampler(plan: Plan, seed: int) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import GPSampler, TPESampler

    if plan.sampler == "gp":
        return GPSampler(seed=seed, n_startup_trials=len(plan.space) + 1)
    return TPESampler(seed=seed, n_startup_trials=_RANDOM_TRIALS)


def choose_sampler(name: str, trials: int) -> SamplerName:
    """Return the sampler asked for; "auto" is a Gaussian process for few trials, else TPE."""
    match name:
        case "tpe" | "gp":
            return name
        case "auto":
            return "gp" if trials <= _FEW_TRIALS else "tpe"
        case _:
            raise ConfigError(f'sampler = "{name}": expected "auto", "tpe" or "gp"')


_FEW_TRIALS = 60  # a Gaussian process learns from fewer trials, and takes longer to ask
