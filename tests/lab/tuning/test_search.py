"""A whole search: better than a bad start, the same when continued, blind to test sets."""

import csv
import logging
import sqlite3

import optuna
import pytest

from dapperfl.errors import CheckpointError, ConfigError, RunError
from dapperfl.lab.config import Config
from dapperfl.lab.resolve import resolve
from dapperfl.lab.tuning import Progress, Trial, TuneResult, tune
from dapperfl.lab.tuning.search import STUDY
from tests.lab.conftest import edit
from tests.lab.tuning import poisoned_world
from tests.lab.tuning.made_up import MadeUp, score

REAL = ["net.width=4", "train.batch_size=4", "data.fraction=0.6", "rounds=2", "method.gamma=100"]
SPACE = ["method.gamma=log(1e-4,10)", "method.recovery={paper,zero}"]
BAD = resolve(None, ["method.gamma=1000", "rounds=3"])


@pytest.fixture
def made_up(monkeypatch):
    """Let a formula be the judge, leave the pictures out, and return every gamma it judged."""
    monkeypatch.setattr(MadeUp, "judged", [], raising=False)
    monkeypatch.setattr("dapperfl.lab.tuning.hands.Judge", MadeUp)
    monkeypatch.setattr("dapperfl.lab.tuning.search.draw_results", lambda *_: None)
    return MadeUp.judged


def search(out, config: Config = BAD, space=SPACE, trials: int = 4, **settings) -> TuneResult:
    return tune(config, space, out=out, trials=trials, sampler="tpe", **settings)


def facts(result: TuneResult) -> list[tuple]:
    """Return what must not depend on when, or in how many pieces, a trial was run."""
    return [
        (t.number, t.state, t.values, t.score, t.steps, t.validation, t.error)
        for t in result.trials
    ]


class Killed(BaseException):
    """What a test raises in the midst of a search."""


def kill_at(number: int, step: int):
    def show(event):
        if isinstance(event, Progress) and (event.number, event.step) == (number, step):
            raise Killed

    return show


def test_a_search_beats_a_bad_start_and_leaves_its_files(toy, tmp_path, caplog):
    caplog.set_level(logging.INFO, "dapperfl")
    events: list[Progress | Trial] = []
    result = search(tmp_path, toy(*REAL), trials=4, show=events.append)
    start, best = result.start.score, result.best.score
    assert start is not None
    assert best is not None
    assert best > start + 20
    assert [trial.number for trial in result.trials] == [0, 1, 2, 3, 4]
    assert result.start.values == {"method.gamma": 100.0, "method.recovery": "gated"}
    assert [event for event in events if isinstance(event, Trial)] == list(result.trials)
    note = "data.validation is 0: in the trials, devices keep 0.2 of their pictures aside"
    assert note in caplog.text
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {STUDY, "trials.csv", "best.toml", "importance.png", "slices.png"}
    written = resolve(tmp_path / "best.toml")
    assert written == result.config
    assert written.data.validation == 0  # whoever trains with it has all pictures
    assert written.method.fields["gamma"] == result.best.values["method.gamma"]
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == [trial.score for trial in result.trials]


def test_poisoned_test_sets_are_never_read(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("dapperfl.lab.tuning.search.draw_results", lambda *_: None)
    poisoned = toy(*REAL, f"data={poisoned_world.__name__}:load")
    blind = search(tmp_path / "blind", poisoned, trials=1)
    assert facts(blind) == facts(search(tmp_path / "clean", toy(*REAL), trials=1))


def test_a_score_is_that_of_its_values(made_up, tmp_path):
    result = search(tmp_path, seeds=[0, 4])
    assert len(result.trials) == 5
    for trial in result.trials:
        gamma, recovery = trial.values.values()
        ends = [score(gamma, recovery, seed) for seed in (0, 4)]
        assert trial.score == pytest.approx(sum(ends) / 2)
        steps = [end * n / 3 for end in ends for n in (1, 2, 3)]
        assert trial.steps == pytest.approx(dict(enumerate(steps, start=1)))
    assert result.best.score == max(trial.score or 0 for trial in result.trials)


def test_one_worker_tries_the_same_again_with_the_same_seed(made_up, tmp_path):
    assert facts(search(tmp_path / "a")) == facts(search(tmp_path / "b"))
    first = made_up[1:5]
    search(tmp_path / "c", resolve(None, ["method.gamma=1000", "rounds=3", "seed=1"]))
    assert made_up[11:] != first


@pytest.mark.parametrize(("number", "step"), [(0, 1), (2, 0), (4, 3)])
@pytest.mark.slow
def test_a_killed_search_goes_on_as_if_nothing_had_been(made_up, tmp_path, number, step):
    whole = search(tmp_path / "whole")
    with pytest.raises(Killed):
        search(tmp_path / "killed", show=kill_at(number, step))
    made_up.clear()
    continued = search(tmp_path / "killed")
    assert facts(continued) == facts(whole)
    # What was finished before the kill is not judged again.
    assert made_up == [trial.values["method.gamma"] for trial in whole.trials[number:]]


def test_more_trials_are_added_and_a_finished_study_is_only_read(made_up, tmp_path):
    few, more = search(tmp_path, trials=2), search(tmp_path, trials=4)
    assert more.trials[:3] == few.trials
    assert len(made_up) == 5
    assert search(tmp_path, trials=4).trials == more.trials
    assert len(made_up) == 5


def test_hopeless_trials_are_stopped_and_the_start_never_is(made_up, tmp_path):
    good = resolve(None, ["method.gamma=0.01", "rounds=9"])
    result = search(tmp_path, good, ["method.gamma=log(1e-8,1e-2)"], trials=12)
    assert result.start.state == "complete"
    done = [trial for trial in result.trials[:5] if trial.state == "complete"]
    assert len(done) >= 4  # there must be some to compare with
    stopped = [trial for trial in result.trials if trial.state == "stopped"]
    assert stopped
    for trial in stopped:
        last = max(trial.steps)
        assert 5 <= last < 9  # a score is the mean of five rounds
        assert trial.score == trial.steps[last]
        others = [t.steps[last] for t in result.trials[: trial.number] if t.state == "complete"]
        assert trial.score <= sorted(others)[len(others) // 2]


def test_what_breaks_down_is_stopped_and_what_fails_is_named(made_up, tmp_path, caplog):
    result = search(tmp_path, BAD, ["method.alpha_0={0,0.5,1}"])
    states = {trial.values["method.alpha_0"]: trial.state for trial in result.trials}
    assert states == {0.9: "complete", 0.0: "stopped", 0.5: "complete", 1.0: "failed"}
    assert len(result.trials) == 4  # there is nothing more to try
    assert caplog.text.count("it broke") == 2
    assert search(tmp_path, BAD, ["method.alpha_0={0,0.5,1}"]).trials == result.trials


def test_a_start_that_cannot_be_tried_is_an_error(made_up, tmp_path):
    with pytest.raises(RunError, match="the config's own values cannot be tried: it broke"):
        search(tmp_path, resolve(None, ["method.alpha_0=1"]))


def test_optuna_can_read_the_study(made_up, tmp_path):
    result = search(tmp_path, resolve(None, ["method.gamma=1", "method.recovery=zero"]))
    database = sqlite3.connect(tmp_path / STUDY)
    assert database.execute("select count(*) from trials").fetchone() == (5,)
    database.close()
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / STUDY}")
    study = optuna.load_study(study_name=None, storage=storage)
    assert [trial.params for trial in study.trials] == [trial.values for trial in result.trials]
    assert study.best_value == result.best.score
    storage.remove_session()
    storage.engine.dispose()


def test_another_study_is_refused_and_names_what_differs(made_up, tmp_path):
    search(tmp_path, trials=1)
    other = resolve(None, ["method.gamma=1000", "rounds=3", "train.lr=0.1"])
    with pytest.raises(ConfigError, match=r"train\.lr = 0\.1, but the study was begun with 0\.05"):
        search(tmp_path, other)
    with pytest.raises(ConfigError, match=r"space = .*, but the study was begun with"):
        search(tmp_path, space=SPACE[:1])
    with pytest.raises(ConfigError, match=r"seeds = \[1\], but the study was begun with \[0\]"):
        search(tmp_path, seeds=[1])
    assert len(made_up) == 2


def test_other_folders_are_left_alone(made_up, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds no study; choose another --out"):
        search(tmp_path)
    out = tmp_path / "broken"
    out.mkdir()
    (out / STUDY).write_text("this is no database, and long enough to be looked at " * 20)
    with pytest.raises(CheckpointError, match="is no study of this Optuna"):
        search(out)


def test_a_study_that_cannot_be_written_any_more_is_one_line(made_up, tmp_path):
    def spoil(event):
        if isinstance(event, Progress) and event.number == 1:
            (tmp_path / STUDY).write_text("as if the disk were full " * 10_000)

    with pytest.raises(CheckpointError) as caught:
        search(tmp_path, show=spoil)
    said = "file is not a database; when that is solved, the same command goes on"
    assert str(caught.value) == f"cannot read or write {tmp_path / STUDY}: {said}"


def test_a_study_that_cannot_be_opened_says_why(made_up, tmp_path):
    (tmp_path / STUDY).mkdir()
    with pytest.raises(CheckpointError) as caught:
        search(tmp_path)
    assert f"cannot read or write {tmp_path / STUDY}: unable to open database file; when" in str(
        caught.value
    )


def test_a_folder_that_cannot_be_written_names_no_option_that_tune_lacks(made_up, tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(CheckpointError, match=r"\.lock: Is a directory; choose another --out$"):
        search(tmp_path)


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"workers": 0}])
def test_numbers_below_one_are_refused(made_up, tmp_path, wrong):
    with pytest.raises(ConfigError, match="= 0: expected at least 1"):
        search(tmp_path, **wrong)


@pytest.mark.slow
def test_a_search_on_minidigits_beats_a_deliberately_bad_start(tmp_path, minidigits_root):
    small = ["net.width=4", "fleet.devices=4", "rounds=6", "train.epochs=2", "train.batch_size=16"]
    worst = ["method.gamma=30", "method.alpha_0=1", "method.alpha_min=1"]  # learns nothing at all
    config = resolve(None, [*small, *worst, f"data.root={minidigits_root}", "engine.device=cpu"])
    result = tune(config, out=tmp_path, trials=6)  # the four constants of the paper
    start, best = result.start.score, result.best.score
    assert start is not None
    assert best is not None
    assert start < 15  # chance is 10
    assert best > start + 5


def test_a_study_of_one_folder_is_not_continued_on_another(made_up, tmp_path):
    here, there = (
        resolve(None, ["data=folder", f"data.root={place}", "rounds=3"])
        for place in ("here", "there")
    )
    search(tmp_path / "o", here, trials=1)
    with pytest.raises(ConfigError, match=r'data\.root = "there", but the study was begun with'):
        search(tmp_path / "o", there, trials=1)


def test_a_study_is_not_continued_with_another_option_of_its_pictures(made_up, tmp_path):
    rooted = ["data=tests.lab.toy_world:load_rooted", "rounds=3"]
    one, other = (resolve(None, [*rooted, f"data.root_light={light}"]) for light in (0.4, 0.5))
    search(tmp_path / "o", one, trials=1)
    with pytest.raises(ConfigError, match=r"data\.root_light = 0\.5, but the study was begun with"):
        search(tmp_path / "o", other, trials=1)


def test_a_study_goes_on_with_code_that_has_changed_and_says_so_once(
    made_up, own_module, tmp_path, caplog
):
    own_module.write_text("from dapperfl.methods.dapperfl import DapperFL as Mine\n")
    settings = [f"method={own_module.stem}:Mine", "method.gamma=1000", "rounds=3"]
    config = resolve(None, settings)
    search(tmp_path / "study", config, trials=1)
    search(tmp_path / "study", config, trials=1)
    assert "changed" not in caplog.text
    edit(own_module)
    assert len(search(tmp_path / "study", config, trials=2).trials) == 3
    [told] = [text for text in caplog.messages if "changed" in text]
    assert told.startswith(f"{own_module.name} has changed since this study was begun: what it has")
    assert "so far, 2 trials, is of the code before; choose another --out" in told
