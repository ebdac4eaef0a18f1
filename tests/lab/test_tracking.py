"""Trackers are told every round once, however often a run is stopped."""

import sys
from pathlib import Path

import pytest
import typer.testing
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dapperfl.cli import app
from dapperfl.errors import ConfigError
from dapperfl.lab.experiment import opened
from dapperfl.lab.records import Absence, RoundLine, load_records
from dapperfl.lab.tracking import TensorBoard, load_tracker, scalars, tracked
from tests.lab.conftest import TOY

SMALL = ["net.width=4", "train.epochs=1", "rounds=4"]


class Diary:
    """A tracker of somebody's own: a text file in the run folder."""

    def __init__(self, folder, config, past):
        self.path = Path(folder) / "diary.txt"
        self.path.write_text(f"{config.method.name} {[line.round for line in past]}\n")

    def add(self, line):
        self._write(f"{line.round} {line.mean}\n")

    def close(self):
        self._write("closed\n")

    def _write(self, text):
        with self.path.open("a") as file:
            file.write(text)


def _run(config, out, tracker, stop_after: int | None = None, resume: bool = False) -> None:
    with opened(config, out, resume=resume) as experiment, tracked([tracker], experiment) as tell:
        for line in experiment.rounds():
            tell(line)
            if line.round == stop_after:
                return


def _events(out: Path) -> dict[str, list[tuple[int, float]]]:
    """Read every event as TensorBoard does, those it would hide included."""
    reader = EventAccumulator(str(out / "tensorboard"), purge_orphaned_data=False)
    reader.Reload()
    names = reader.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in reader.Scalars(name)] for name in names}


def test_tensorboard_has_the_curves_of_the_run(toy, tmp_path):
    _run(toy(*SMALL, "data.validation=0.3"), tmp_path / "run", TensorBoard)
    lines, events = load_records(tmp_path / "run"), _events(tmp_path / "run")
    curves = {"accuracy/mean", "accuracy/dark", "accuracy/light", "loss", "seconds", "left_out"}
    assert curves | {"validation/dark", "validation/light"} == events.keys()
    for name, values in {
        "accuracy/mean": [line.mean for line in lines],
        "accuracy/dark": [line.accuracy["dark"] for line in lines],
        "validation/light": [line.validation["light"] for line in lines],
    }.items():
        assert dict(events[name]) == pytest.approx(dict(enumerate(values, start=1)))


def test_a_continued_run_has_every_round_once(toy, tmp_path):
    config, out = toy(*SMALL, "checkpoint_every=2"), tmp_path / "run"
    _run(config, out, TensorBoard, stop_after=3)  # round 3 is in no checkpoint
    assert [step for step, _ in _events(out)["loss"]] == [1, 2, 3]
    _run(config, out, TensorBoard, resume=True)
    events = _events(out)
    assert all([step for step, _ in found] == [1, 2, 3, 4] for found in events.values())
    seconds = [pytest.approx(line.seconds, rel=1e-6) for line in load_records(out)]
    assert [value for _, value in events["seconds"]] == seconds


def test_the_config_is_beside_the_curves(toy, tmp_path):
    _run(toy(*SMALL), tmp_path, TensorBoard, stop_after=1)
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    (text,) = reader.Tensors("config/text_summary")
    assert b'name = "dapperfl"' in text.tensor_proto.string_val[0]


def test_scalars_are_the_numbers_that_make_curves():
    line = RoundLine(
        round=1,
        accuracy={"dark": 10.0, "light": 30.0},
        mean=20.0,
        loss=None,
        seconds=2.5,
        costs={},
        left_out=(Absence(3, "too slow"),),
        validation={"dark": 40.0},
    )
    assert scalars(line) == {
        "accuracy/mean": 20.0,
        "accuracy/dark": 10.0,
        "accuracy/light": 30.0,
        "validation/dark": 40.0,
        "seconds": 2.5,
        "left_out": 1,
    }


def test_a_domain_called_mean_does_not_hide_the_mean():
    line = RoundLine(1, {"mean": 10.0, "light": 30.0}, 20.0, None, 2.5, {}, ())
    assert scalars(line)["accuracy/mean"] == 20.0
    assert scalars(line)["accuracy/mean (domain)"] == 10.0


def test_a_tracker_of_ones_own_hears_of_the_past_and_is_closed(toy, tmp_path):
    tracker = load_tracker(f"{__name__}:Diary")
    _run(toy(*SMALL), tmp_path / "run", tracker, stop_after=2)
    _run(toy(*SMALL), tmp_path / "run", tracker, resume=True)
    means = {line.round: line.mean for line in load_records(tmp_path / "run")}
    assert (tmp_path / "run" / "diary.txt").read_text() == (
        f"dapperfl [1, 2]\n3 {means[3]}\n4 {means[4]}\nclosed\n"
    )


def test_a_tracker_is_closed_when_a_run_fails(toy, tmp_path):
    config = toy(*SMALL, "train.lr=1e30")
    with pytest.raises(Exception, match="nobody took part"):
        _run(config, tmp_path / "run", Diary)
    assert (tmp_path / "run" / "diary.txt").read_text().endswith("closed\n")


def test_the_command_line_takes_trackers_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = typer.testing.CliRunner()
    small = [part for each in [*TOY, "rounds=1"] for part in ("--set", each)]
    track = ["--track", "tensorboard", "--track", f"{__name__}:Diary"]
    done = runner.invoke(app, ["run", *small, "--out", "run", *track])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "diary.txt").exists()
    assert len(_events(tmp_path / "run")["loss"]) == 1
    done = runner.invoke(app, ["run", *small, "--out", "other", "--track", "tensorbord"])
    assert done.exit_code == 2
    assert 'did you mean "tensorboard"?' in done.stderr
    assert not (tmp_path / "other").exists()


def test_a_missing_package_is_named_before_anything_is_written(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r'run: pip install "dapperfl\[tensorboard\]"'):
        load_tracker("tensorboard")
