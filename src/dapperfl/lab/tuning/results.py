"""What a study leaves beside itself: its trials as CSV, the best config, and two pictures."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from dapperfl.lab.config import Config, to_toml
from dapperfl.lab.fields import show
from dapperfl.lab.folder import write_atomically
from dapperfl.lab.tuning.drawing import draw_importance, draw_slices
from dapperfl.lab.tuning.sampling import seen_study
from dapperfl.lab.tuning.trials import Plan, Trial

TRIALS, BEST = "trials.csv", "best.toml"
IMPORTANCE, SLICES = "importance.png", "slices.png"
_LEAST = 4  # trials, below which nothing can be said about importance


def write_results(best: Config, keys: Sequence[str], trials: Sequence[Trial], out: Path) -> None:
    """Write the trials so far and the best config, each in one step."""
    write_atomically(out / TRIALS, _csv(keys, trials).encode())
    write_atomically(out / BEST, to_toml(best).encode())


def _csv(keys: Sequence[str], trials: Sequence[Trial]) -> str:
    domains = list(dict.fromkeys(name for trial in trials for name in trial.validation))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    accuracies = [f"validation.{name}" for name in domains]
    writer.writerow(["trial", "state", "score", *keys, *accuracies, "rounds", "seconds", "error"])
    for trial in trials:
        writer.writerow(
            [trial.number, trial.state, "" if trial.score is None else trial.score]
            + [show(trial.values[key]).strip('"') for key in keys]
            + [trial.validation.get(name, "") for name in domains]
            + [max(trial.steps, default=0), trial.seconds, trial.error]
        )
    return text.getvalue()


def draw_results(plan: Plan, trials: Sequence[Trial], out: Path) -> None:
    """Draw how much each key matters, and the score along each key."""
    draw_importance(importance(plan, trials)).savefig(out / IMPORTANCE)
    draw_slices(plan.space, trials).savefig(out / SLICES)


def importance(plan: Plan, trials: Sequence[Trial]) -> dict[str, float]:
    """Return each key's share of the variation of the score (fANOVA), the largest first.

    It is empty where there are too few trials in the space, or all have the same score.
    """
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    study = seen_study(plan, trials)
    values = {trial.value for trial in study.get_trials(deepcopy=False)}
    if len(study.get_trials(deepcopy=False)) < _LEAST or len(values) < 2:
        return {}
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
