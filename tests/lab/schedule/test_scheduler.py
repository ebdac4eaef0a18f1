"""Lists of runs: as if done one after another, whatever happens to some of them.

The workers are real processes, and so are their deaths. Only the dealing to GPUs is tested with
workers that are made up.
"""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.experiment import opened, run
from dapperfl.lab.folder import RunFolder, read_json
from dapperfl.lab.records import load_records
from dapperfl.lab.resolve import resolve
from dapperfl.lab.schedule import Job, Outcome, Progress, run_all, scheduler
from dapperfl.lab.schedule.worker import Failed, Finished, Note
from tests.data.pictures.trees import plant
from tests.lab.conftest import TOY, assert_equal_runs, edit
from tests.lab.schedule.made_up import GB, SUMMARY, Machine

TROUBLES = "tests.lab.schedule.troubles"
SMALL = [*TOY, "net.width=4", "train.epochs=1"]


def _job(folder: Path, name: str, *settings: str) -> Job:
    return Job(name, resolve(None, [*SMALL, *settings]), folder / name.replace(" ", "-"))


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += f"{record.levelname} {record.getMessage()}".splitlines()


@dataclass
class Night:
    """A list of runs that has been done, and what was to be seen of it."""

    folder: Path
    jobs: dict[str, Job]
    events: list[Progress | Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    folder = tmp_path_factory.mktemp("night")
    jobs = [
        _job(folder, "plain", "method=fedavg"),
        _job(folder, "half done", "seed=3"),
        _job(folder, "somebody else's", "seed=1"),
        _job(folder, "impossible", "fleet.rhos=[0.999]"),
        _job(folder, "killed once", f"data={TROUBLES}:load_killed_once", f"data.root={folder}"),
        _job(folder, "broken", f"method={TROUBLES}:Broken"),
        _job(folder, "chatty", f"data={TROUBLES}:load_chatty", "rounds=1"),
        _job(folder, "last", "seed=2"),
    ]
    with opened(replace(jobs[2].config, seed=7), jobs[2].out):
        pass
    with opened(jobs[1].config, jobs[1].out) as half:
        next(half.rounds())
    night = Night(folder, {job.name: job for job in jobs})
    notes, log = _Records(), logging.getLogger("dapperfl")
    log.addHandler(notes)
    outcomes = run_all(jobs, workers=2, show=night.events.append)
    log.removeHandler(notes)
    assert [outcome.job for outcome in outcomes] == jobs
    night.outcomes |= {outcome.job.name: outcome for outcome in outcomes}
    night.notes += notes.lines
    return night


@pytest.mark.parametrize("name", ["plain", "half done", "killed once", "last"])
@pytest.mark.slow
def test_each_run_ends_where_it_would_have_ended_alone(night, tmp_path, name):
    outcome = night.outcomes[name]
    assert outcome.error is None
    assert outcome.summary == read_json(RunFolder(outcome.job.out).summary)
    run(outcome.job.config, tmp_path / "alone")
    assert_equal_runs(tmp_path / "alone", outcome.job.out)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("somebody else's", "seed = 1, but the run was started with 7"),
        ("impossible", "0.999"),
        ("broken", "IndexError: list index out of range"),
    ],
)
def test_a_failed_run_says_why_and_fails_alone(night, name, error):
    outcome = night.outcomes[name]
    assert outcome.summary is None
    assert error in str(outcome.error)
    assert "\n" not in str(outcome.error)


def test_only_a_mistake_in_the_code_has_a_traceback(night):
    found = [line for line in night.notes if "Traceback" in line]
    assert found == ["ERROR broken: Traceback (most recent call last):"]
    assert any(
        line.strip() == 'raise IndexError("list index out of range")' for line in night.notes
    )


def test_a_killed_process_is_mentioned_and_its_run_done_last(night):
    sentence = "killed once: the process died with signal 9 (SIGKILL); it is tried again, alone"
    assert any(sentence in line for line in night.notes)
    assert [event for event in night.events if isinstance(event, Outcome)][-1].job.name == (
        "killed once"
    )


def test_what_a_worker_says_comes_with_the_name_of_its_run(night):
    said = [line for line in night.notes if "chatty" in line]
    assert any("WARNING chatty:" in line and "the pictures are made up" in line for line in said)
    assert "WARNING chatty: half a line, then the rest" in said


def test_how_far_each_run_is_is_shown_up_to_its_last_round(night):
    for name in ("plain", "last"):
        job = night.jobs[name]
        seen = [each for each in night.events if each.job is job]
        *progress, end = seen
        assert isinstance(end, Outcome)
        assert all(isinstance(each, Progress) for each in progress)
        rounds = [each.round for each in progress]
        assert rounds == sorted(rounds)
        assert (rounds[0], rounds[-1]) == (0, 3)
        means = [line.mean for line in load_records(job.out)]
        assert progress[-1] == Progress(job, "cpu", 3, means[-1], max(means), progress[-1].seconds)


def test_an_interrupted_run_goes_on_from_where_it_was(night):
    job = night.jobs["half done"]
    seen = [each.round for each in night.events if each.job is job and isinstance(each, Progress)]
    assert seen[:2] == [0, 1]  # given to a worker, then opened
    assert 3 in seen


def test_what_is_finished_starts_no_process(night, monkeypatch):
    monkeypatch.setattr(scheduler, "Worker", None)
    before = {path: path.stat().st_mtime_ns for path in night.folder.rglob("*")}
    found: list = []
    outcomes = run_all([night.jobs["last"], night.jobs["plain"]], show=found.append)
    assert outcomes == [night.outcomes["last"], night.outcomes["plain"]] == found
    (other,) = run_all([replace(night.jobs["plain"], config=night.jobs["last"].config)])
    assert "but the run was started with" in str(other.error)
    assert {path: path.stat().st_mtime_ns for path in night.folder.rglob("*")} == before


def test_a_wrong_list_is_refused_before_anything_starts(tmp_path):
    one, other = _job(tmp_path, "one"), _job(tmp_path, "other")
    with pytest.raises(ConfigError, match="one and other both write to"):
        run_all([one, replace(other, out=tmp_path / "x" / ".." / "one")])
    with pytest.raises(ConfigError, match="workers = 0: expected at least 1"):
        run_all([one], workers=0)
    with pytest.raises(ConfigError, match=r"devices = \[\]"):
        run_all([one], devices=[])
    with pytest.raises(ConfigError, match=r'engine\.device = "gpu"'):
        run_all([one], devices=["gpu"])
    assert not list(tmp_path.iterdir())
    assert run_all([]) == []


@pytest.fixture
def machine(monkeypatch) -> Machine:
    """Two GPUs of 20 GB each, of which a run takes 4."""
    made_up = Machine()
    monkeypatch.setattr(scheduler, "Worker", made_up.worker)
    monkeypatch.setattr(scheduler, "wait", lambda sources, seconds: None)
    monkeypatch.setattr(scheduler, "host_free", lambda: 100 * GB)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    return made_up


def _jobs(folder: Path, number: int, device: str) -> list[Job]:
    return [_job(folder, f"{i}", f"engine.device={device}") for i in range(number)]


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_jobs_are_dealt_to_all_gpus_as_far_as_their_memory_goes(machine, tmp_path, device):
    outcomes = run_all(_jobs(tmp_path, 40, device), workers=30)
    assert [outcome.job.name for outcome in outcomes] == [f"{i}" for i in range(40)]
    assert all(outcome.summary == SUMMARY for outcome in outcomes)
    # 4 GB and a tenth: four fit into 20 GB, a fifth does not.
    assert machine.most == {"cuda:0": 4, "cuda:1": 4}
    assert len(machine.workers) == 8  # each runs job after job
    assert all(each.closed for each in machine.workers)
    assert set(machine.devices()) == {"cuda:0", "cuda:1"}


def test_no_more_workers_than_asked_for(machine, tmp_path):
    run_all(_jobs(tmp_path, 6, "auto"), workers=3)
    assert sum(machine.most.values()) <= 4
    assert len(machine.workers) == 3


@pytest.mark.parametrize(("devices", "together"), [(None, 2), (["cuda:1"], 3)])
def test_workers_know_how_many_share_a_gpu(machine, tmp_path, devices, together):
    run_all(_jobs(tmp_path, 6, "auto"), workers=3, devices=devices)
    assert {each.together for each in machine.workers} == {together}


def test_a_device_named_in_a_config_is_kept(machine, tmp_path):
    run_all([*_jobs(tmp_path, 3, "cuda:1"), _job(tmp_path, "on the CPU")])
    assert machine.devices() == ["cpu", "cuda:1", "cuda:1", "cuda:1"]


def test_named_devices_take_all_that_is_not_bound(machine, tmp_path):
    run_all(_jobs(tmp_path, 3, "auto"), devices=["cuda:1"])
    assert set(machine.devices()) == {"cuda:1"}


def test_a_run_without_memory_is_tried_again_alone_and_once_only(machine, tmp_path, caplog):
    jobs = _jobs(tmp_path, 6, "auto")
    machine.fate["2"] = [Failed("CUDA out of memory", "Traceback", no_room=True)]
    outcomes = run_all(jobs, devices=["cuda:1"])
    assert [outcome.error for outcome in outcomes] == [
        "CUDA out of memory" if i == 2 else None for i in range(6)
    ]
    tries = [task.out.name for each in machine.workers for task in each.tasks].count("2")
    assert tries == 2
    assert machine.workers[-1].tasks[-1].out.name == "2"
    assert len(machine.workers[-1].tasks) == 1  # in a fresh process
    assert caplog.text.count("it is tried again, alone") == 1


def test_what_many_runs_say_is_shown_once_and_then_counted(machine, tmp_path, caplog):
    odd, own = Note(logging.WARNING, "one domain only"), Note(logging.WARNING, "device 3 is away")
    ends = Finished(SUMMARY, {})
    machine.fate |= {f"{i}": [odd, *[own, own] * (i == 0), ends] for i in range(4)}
    assert all(outcome.summary for outcome in run_all(_jobs(tmp_path, 5, "auto"), workers=1))
    assert caplog.messages == [
        "0: one domain only",
        "0: device 3 is away",
        "0: device 3 is away",  # in another round
        "0, and 3 more: one domain only",
    ]


def test_threads_are_shared_by_the_workers_asked_for(machine, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 9)
    for workers, threads in ((1, 9), (2, 4), (30, 1)):
        jobs = [replace(job, out=job.out / f"{workers}") for job in _jobs(tmp_path, 20, "cpu")]
        machine.workers.clear()
        run_all(jobs, workers=workers)
        tasks = machine.tasks()
        assert {task.threads for task in tasks} == {threads}
        assert {task.config.engine.workers for task in tasks} == {threads}


def test_an_engine_that_is_told_its_workers_keeps_them(machine, tmp_path):
    run_all([_job(tmp_path, "own", "engine.workers=7"), *_jobs(tmp_path, 1, "cuda")])
    assert [task.config.engine.workers for task in machine.tasks()] == [7, None]


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["loop", "graphs"])
def test_runs_that_share_a_gpu_end_where_they_would_have_ended_alone(tmp_path, engine):
    settings = ["engine.device=auto", f"engine={engine}", "rounds=10"]
    jobs = [_job(tmp_path, f"{seed}", f"seed={seed}", *settings) for seed in range(3)]
    outcomes = run_all(jobs, workers=3)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for job in jobs:
        run(job.config, tmp_path / "alone" / job.name)
        assert_equal_runs(tmp_path / "alone" / job.name, job.out)


def test_finished_runs_on_pictures_that_have_changed_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path / "home"))
    tree = plant(tmp_path / "tree", {f"{d}/{c}": 5 for d in ("day", "night") for c in ("a", "b")})
    own = ("data=folder", f"data.root={tree}", "data.size=8", "data.fraction=0.5", "rounds=1")
    jobs = [_job(tmp_path, f"seed {seed}", *own, f"seed={seed}") for seed in (0, 1)]
    for job in jobs:
        run(job.config, job.out)
    looks = iter(["others"])  # one for both
    monkeypatch.setattr(scheduler, "files_mark", lambda data: next(looks))
    assert all(outcome.summary for outcome in run_all(jobs))
    told = [text for text in caplog.messages if "have come, gone or changed" in text]
    assert ["seed-0" in told[0], "seed-1" in told[1], len(told)] == [True, True, 2]


def test_finished_runs_of_code_that_has_changed_are_told_once(tmp_path, own_module, caplog):
    own = (f"method={own_module.stem}:Mine", f"net={own_module.stem}:convnet", "rounds=1")
    jobs = [_job(tmp_path, f"seed {seed}", *own, f"seed={seed}") for seed in range(4)]
    for job in jobs:
        run(job.config, job.out)
    assert all(outcome.summary for outcome in run_all(jobs))
    assert "changed" not in caplog.text
    edit(own_module)
    assert all(outcome.summary for outcome in run_all(jobs))
    told = [text for text in caplog.messages if "changed" in text]
    assert told == [
        f"{own_module.name} has changed since the start of finished runs, 4 of them (seed 0; "
        "seed 1; seed 2; …): they are taken as they are, of the code before; choose another --out "
        "to train all anew"
    ]
