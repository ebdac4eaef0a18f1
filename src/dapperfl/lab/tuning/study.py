"""The study on the disk: an SQLite file in Optuna's own format, so that its tools can read it too.

A trial of ours carries its number and its values as attributes; Optuna's numbers have gaps where a
process was killed, since an interrupted trial is marked as failed and tried again under its number.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapperfl.data import benchmarks
from dapperfl.errors import CheckpointError, ConfigError
from dapperfl.lab.config import to_keys
from dapperfl.lab.fields import is_among, show
from dapperfl.lab.own_code import changed_code, named, own_code
from dapperfl.lab.tuning.judging import Broken, Done, Step
from dapperfl.lab.tuning.sampling import propose
from dapperfl.lab.tuning.space import Choice, with_values
from dapperfl.lab.tuning.trials import START, Plan, State, Trial

if TYPE_CHECKING:
    import optuna

_log = logging.getLogger(__name__)

_NAME = "dapperfl"
_SECONDS_FOR_A_LOCK = 60
_ROUNDS_BEFORE_STOPPING = 5  # a score is the mean of as many; the first are all at chance level
_TRIALS_BEFORE_STOPPING = 4  # complete ones, whose median a trial must reach to go on
# How fast trials are may change when a study is continued, and who proposes the next ones.
_MAY_CHANGE = (
    "engine.name",
    "engine.workers",
    "engine.device",
    "engine.memory_limit_mb",
    "checkpoint_every",
    "data.root",
    "deploy.",
    "sampler",
)
_STATES: Mapping[str, State] = {"COMPLETE": "complete", "PRUNED": "stopped", "FAIL": "failed"}


@contextmanager
def opened_study(plan: Plan, path: Path) -> Iterator["Study"]:
    """Open a study, new or to be continued.

    Raises:
        CheckpointError: the file is no study, or cannot be read or written, now or later.
        ConfigError: the study was begun with other settings.
    """
    import optuna
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DatabaseError, OperationalError

    try:
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{path}",
            engine_kwargs={"connect_args": {"timeout": _SECONDS_FOR_A_LOCK}},
        )
    except OperationalError as error:
        raise _unusable(path, error) from error
    except (DatabaseError, RuntimeError) as error:
        raise CheckpointError(f"{path} is no study of this Optuna: {_in_short(error)}") from error
    try:
        yield Study(plan, storage)
    except StorageInternalError as error:  # with what the database said as its cause
        raise _unusable(path, error.__cause__ or error) from error
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _unusable(path: Path, error: BaseException) -> CheckpointError:
    """Say of a full disk, or of a file that may not be written, how to go on."""
    remedy = "when that is solved, the same command goes on"
    return CheckpointError(f"cannot read or write {path}: {_in_short(error)}; {remedy}")


def _in_short(error: BaseException) -> object:
    """Return what the database itself said, without the statement it was asked."""
    return getattr(error, "orig", error)


class Study:
    """The trials that are done and the one to do next."""

    def __init__(self, plan: Plan, storage: "optuna.storages.RDBStorage") -> None:
        from optuna import create_study
        from optuna.pruners import MedianPruner

        warm_up = max(_ROUNDS_BEFORE_STOPPING, plan.config.rounds // 3)
        self.plan = plan
        self._study = create_study(
            study_name=_NAME,
            storage=storage,
            direction="maximize",
            pruner=MedianPruner(_TRIALS_BEFORE_STOPPING, warm_up),
            load_if_exists=True,
        )
        self._check_plan()
        self._queue_again()

    def _check_plan(self) -> None:
        then, now = self._study.user_attrs.get("plan"), _written(self.plan)
        if then is None:
            self._study.set_user_attr("plan", now)
            self._study.set_user_attr("code", own_code(self.plan.config))
            return
        named = benchmarks.naming_keys(self.plan.config.data.benchmark)
        for key in then | now:
            may_change = is_among(key, _MAY_CHANGE) and key not in named
            if then.get(key) != now.get(key) and not may_change:
                raise ConfigError(
                    f"{key} = {show(now.get(key))}, but the study was begun with "
                    f"{show(then.get(key))}; choose another --out for another study"
                )
        self._tell_changed_code()

    def _tell_changed_code(self) -> None:
        files = changed_code(self.plan.config, self._study.user_attrs.get("code", {}))
        if files:
            _log.warning(
                "%s since this study was begun: what it has so far, %d trials, is of the code "
                "before; choose another --out to try all anew",
                *(named(files), len(self.trials())),
            )

    def _queue_again(self) -> None:
        """Mark what a killed process left behind, and put it back at the head of the queue."""
        from optuna.trial import TrialState

        for left in self._study.get_trials(states=(TrialState.RUNNING,)):
            self._study.tell(left.number, state=TrialState.FAIL)
        found = self._study.get_trials(deepcopy=False)
        alive = {each.user_attrs["trial"] for each in found if not _interrupted(each)}
        for lost in [each for each in found if each.user_attrs["trial"] not in alive]:
            alive.add(lost.user_attrs["trial"])
            self._enqueue(lost.user_attrs["trial"], lost.user_attrs["values"])

    def _enqueue(self, number: int, values: Mapping[str, Any]) -> None:
        drawn = {each.key: each.drawn(values[each.key]) for each in self.plan.space}
        own = {"trial": number, "values": dict(values)}
        self._study.enqueue_trial({} if None in drawn.values() else drawn, user_attrs=own)

    def trials(self) -> list[Trial]:
        """Return what has ended, in the order of the trials' numbers."""
        ended = [each for each in self._study.get_trials(deepcopy=False) if _ended(each)]
        return sorted((_trial(each) for each in ended), key=lambda trial: trial.number)

    def next_trial(self, limit: int) -> "Running | None":
        """Take the next trial up to a number; None: there are as many, or nothing new to try."""
        from optuna.trial import TrialState

        found = [each for each in self._study.get_trials(deepcopy=False) if not _interrupted(each)]
        waiting = any(each.state == TrialState.WAITING for each in found)
        number = len(found)
        if not waiting:
            if number > limit:
                return None
            running = [each.user_attrs["values"] for each in found if not _ended(each)]
            values = self._values(number, running)
            if values is None:
                return None
            self._enqueue(number, values)
        return Running(self._study, self.plan)

    def _values(self, number: int, running: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        if number == START:
            own = to_keys(self.plan.config)
            return {each.key: own[each.key] for each in self.plan.space}
        return propose(self.plan, number, self.trials(), running)


class Running:
    """A trial that is being tried."""

    def __init__(self, study: "optuna.Study", plan: Plan) -> None:
        self._study, self._trial = study, study.ask()
        self.number: int = self._trial.user_attrs["trial"]
        self.values: Mapping[str, Any] = self._trial.user_attrs["values"]
        self.config = with_values(plan.config, self.values)
        self._last_step = plan.config.rounds * len(plan.seeds)
        if all(each.drawn(self.values[each.key]) is not None for each in plan.space):
            self._suggest(plan)

    def _suggest(self, plan: Plan) -> None:
        """Let Optuna know the values that were drawn for it, for its own tools."""
        for each in plan.space:
            if isinstance(each, Choice):
                self._trial.suggest_categorical(each.key, each.texts)
            elif each.whole:
                self._trial.suggest_int(each.key, int(each.low), int(each.high), log=each.log)
            else:
                self._trial.suggest_float(each.key, each.low, each.high, log=each.log)

    def may_go_on(self, step: Step) -> bool:
        """Take in a round; say whether the trial is still worth its time.

        The config's own values are what all others are compared with: they are never given up.
        """
        self._trial.report(step.score, step.number)
        spared = self.number == START or step.number == self._last_step
        return spared or not self._trial.should_prune()

    def end(self, how: Done | Broken | None, seconds: float) -> Trial:
        """Write down how the trial ended; None: it was stopped."""
        from optuna.trial import TrialState

        self._trial.set_user_attr("seconds", round(seconds, 3))
        match how:
            case Done(score, validation, left_out):
                self._trial.set_user_attr("validation", dict(validation))
                self._trial.set_user_attr("left_out", left_out)
                ended = self._study.tell(self._trial, score)
            case Broken(error, hopeless):
                self._trial.set_user_attr("error", error)
                state = TrialState.PRUNED if hopeless else TrialState.FAIL
                ended = self._study.tell(self._trial, state=state)
            case None:
                ended = self._study.tell(self._trial, state=TrialState.PRUNED)
        return _trial(ended)


def _written(plan: Plan) -> dict[str, Any]:
    """Return what must not change, as it is stored."""
    facts = {
        **to_keys(plan.config),
        "space": [str(each) for each in plan.space],
        "seeds": list(plan.seeds),
        "sampler": plan.sampler,
    }
    stored: dict[str, Any] = json.loads(json.dumps(facts))
    return stored


def _ended(found: "optuna.trial.FrozenTrial") -> bool:
    return found.state.is_finished() and not _interrupted(found)


def _interrupted(found: "optuna.trial.FrozenTrial") -> bool:
    """Say whether a trial is no more than what a killed process left behind."""
    return found.state.name == "FAIL" and "error" not in found.user_attrs


def _trial(found: "optuna.trial.FrozenTrial") -> Trial:
    about = found.user_attrs
    steps = dict(sorted(found.intermediate_values.items()))
    state = _STATES[found.state.name]
    reached = steps[max(steps)] if steps else 0.0
    return Trial(
        number=about["trial"],
        state=state,
        values=about["values"],
        score={"complete": found.value, "stopped": reached, "failed": None}[state],
        steps=steps,
        seconds=about["seconds"],
        validation=about.get("validation", {}),
        error=about.get("error", ""),
        left_out=about.get("left_out", 0),
    )
