"""The search itself: hand out trials, stop the hopeless ones, write down what came of it."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dapperfl.errors import CheckpointError, ConfigError, RunError
from dapperfl.lab.config import Config
from dapperfl.lab.folder import RunFolder
from dapperfl.lab.tuning.hands import Hand, crew, ready
from dapperfl.lab.tuning.judging import Broken, Done, Step
from dapperfl.lab.tuning.results import draw_results, write_results
from dapperfl.lab.tuning.sampling import choose_sampler, require_optuna
from dapperfl.lab.tuning.space import Dimension, default_space, parse_space, with_values
from dapperfl.lab.tuning.study import Running, Study, opened_study
from dapperfl.lab.tuning.trials import START, Plan, Progress, Trial, best_of

_log = logging.getLogger(__name__)

Show = Callable[[Progress | Trial], object]
STUDY = "study.sqlite3"
VALIDATION = 0.2  # share kept aside where the config keeps nothing


@dataclass(frozen=True)
class TuneResult:
    """What a search came to; its folder holds the same as files."""

    out: Path
    space: tuple[Dimension, ...]
    config: Config  # the one given, with the best values
    start: Trial  # the config's own values
    best: Trial  # may be the start
    trials: tuple[Trial, ...]  # all that ended, the start included, by number


def tune(
    config: Config,
    space: Sequence[str] = (),
    *,
    out: Path,
    trials: int = 30,
    sampler: str = "auto",
    seeds: Sequence[int] = (),
    workers: int = 1,
    show: Show = lambda event: None,
) -> TuneResult:
    """Search for better values of some keys, judged on what devices keep aside.

    There is no other objective: to choose by test accuracy, as the paper's own search did, is to
    report a number that no new picture will confirm. With one worker the same call tries the same
    values; called again, it goes on where it was killed, or adds trials.

    Args:
        config: What to start from. If its devices keep nothing aside, a fifth of their pictures
            is, in the trials only.
        space: One `KEY=FORM` a dimension, see `space`; DapperFL's four constants unless given.
        out: The study's folder.
        trials: How many to try beside the config's own values.
        sampler: "tpe", "gp" (Gaussian process), or "auto": the latter for few trials.
        seeds: Every trial is the mean over these; the config's own unless given.
        workers: Processes that try side by side; from two on, the order of events decides.
        show: Is told of every round and of every trial that ended.

    Raises:
        ConfigError: Optuna is missing, the space is wrong, or the folder holds another study.
        RunError: the config itself cannot be run.
    """
    require_optuna()
    if trials < 1:
        raise ConfigError(f"trials = {trials}: expected at least 1")
    known = parse_space(space or default_space(config), config)
    plan = Plan(
        config=_with_validation(config),
        space=known,
        seeds=tuple(dict.fromkeys(seeds)) or (config.seed,),
        sampler=choose_sampler(sampler, trials),
    )
    return _search(config, plan, out, _Extent(trials, workers), show)


@dataclass(frozen=True)
class _Extent:
    trials: int
    workers: int


def _search(config: Config, plan: Plan, out: Path, extent: _Extent, show: Show) -> TuneResult:
    def write(trials: list[Trial]) -> None:
        if any(trial.state == "complete" for trial in trials):
            best = with_values(config, best_of(trials).values)
            write_results(best, [each.key for each in plan.space], trials, out)

    _refuse_other_folder(out)
    held = RunFolder(out).held("choose another --out")  # there is no --resume here
    with held, opened_study(plan, out / STUDY) as study:
        with crew(extent.workers, plan.config) as hands:
            _Search(study, hands, show, write).run(extent.trials)
        found = study.trials()
        draw_results(plan, found, out)
    best = best_of(found)
    return TuneResult(
        out=out,
        space=plan.space,
        config=with_values(config, best.values),
        start=found[START],
        best=best,
        trials=tuple(found),
    )


def _with_validation(config: Config) -> Config:
    if config.data.validation > 0 or config.data.reserve > 0:
        return config
    _log.info(
        "data.validation is 0: in the trials, devices keep %g of their pictures aside", VALIDATION
    )
    return replace(config, data=replace(config.data, validation=VALIDATION))


def _refuse_other_folder(out: Path) -> None:
    if RunFolder(out).is_used() and not (out / STUDY).exists():
        raise CheckpointError(f"{out} is not empty and holds no study; choose another --out")


@dataclass
class _Ongoing:
    """A trial in somebody's hands, since when."""

    trial: Running
    began: float


class _Search:
    """Who tries what at the moment."""

    def __init__(
        self,
        study: Study,
        hands: Sequence[Hand],
        show: Show,
        write: Callable[[list[Trial]], None],
    ) -> None:
        self.study, self.hands, self.show, self.write = study, hands, show, write
        self.busy: dict[Hand, _Ongoing] = {}

    def run(self, limit: int) -> None:
        """Try until there are as many trials, or nothing new to try."""
        for trial in self.study.trials():
            self.show(trial)
        while self._hand_out(limit):
            for hand in ready(list(self.busy)):
                self._hear(hand)
        self.write(self.study.trials())

    def _hand_out(self, limit: int) -> bool:
        for hand in self.hands:
            trial = None if hand in self.busy else self.study.next_trial(limit)
            if trial is not None:
                self.busy[hand] = _Ongoing(trial, time.monotonic())
                self.show(Progress(trial.number, trial.values))
                hand.begin(trial.config, self.study.plan.seeds)
        return bool(self.busy)

    def _hear(self, hand: Hand) -> None:
        trial = self.busy[hand].trial
        message = hand.hear()
        if not isinstance(message, Step):
            self._end(hand, message)
            return
        self.show(Progress(trial.number, trial.values, message.number, message.score))
        go_on = trial.may_go_on(message)
        hand.answer(go_on)
        if not go_on:
            self._end(hand, None)

    def _end(self, hand: Hand, how: Done | Broken | None) -> None:
        ongoing = self.busy.pop(hand)
        trial = ongoing.trial.end(how, time.monotonic() - ongoing.began)
        if isinstance(how, Broken):
            _log.warning("trial %d: %s", trial.number, how.traceback or how.error)
            if trial.number == START:
                raise RunError(f"the config's own values cannot be tried: {how.error}")
        self.show(trial)
        self.write(self.study.trials())
