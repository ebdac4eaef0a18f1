"""The bench runs, and says what it measured; how fast anything is, is not tested here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import page, results
from benchmarks.baselines import bare_loop, release_way
from benchmarks.measure import Goal, Options, Row, as_much, at_least, at_most, faster, medians
from benchmarks.rows import gpu_rounds, gpu_steps, overhead
from benchmarks.synthetic import NOISE, examples

from dapperfl import nets
from dapperfl.lab.build import build

ROOT = Path(__file__).parents[1]
KEYS = {"name", "value", "unit", "baseline", "ratio", "target", "met"}
ON_CPU = gpu_rounds.Engine("loop", "fp32", "cpu")


@pytest.mark.slow
def test_the_quick_bench_measures_every_part(tmp_path, minidigits_root):
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", "--quick", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"DAPPERFL_DATA": str(minidigits_root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert {"when", "command", "machine", "cores", "dapperfl", "torch", "python"} <= written.keys()
    names = [row["name"] for row in written["rows"]]
    for part in ("engine auto", "step at rho .8", "upload", "fold", "peak memory", "augmented",
                 "first training step", "devices a round"):  # fmt: skip
        assert any(part in name for name in names), part
    for row in written["rows"]:
        assert row.keys() == KEYS
        assert row["value"] > 0
        assert row["name"] in done.stdout
    assert all(row["met"] for row in written["rows"] if row["name"].startswith("upload"))
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_ratio_says_how_much_faster_or_how_much_more():
    quick = faster("a", seconds=2.0, baseline=8.0, goal=at_least(3))
    assert (quick.value, quick.unit, quick.ratio, quick.met) == (2.0, "s", 4.0, True)
    assert quick.margin == pytest.approx(4 / 3)
    large = as_much("b", 6.0, "MB", 4.0, at_most(1.2))
    assert (large.ratio, large.met) == (1.5, False)
    assert large.margin == pytest.approx(0.8)


def test_a_goal_may_be_about_the_value_itself():
    row = faster("a", seconds=0.3, baseline=6.0, goal=at_most(0.35, "value"))
    assert (row.value, row.unit, row.judged, row.met) == (0.3, "s", 0.3, True)
    assert row.ratio == pytest.approx(20)


def test_without_a_goal_there_is_nothing_to_meet():
    table = as_much("a", 1.0, "s", 2.0).to_table()
    assert table.keys() == KEYS
    assert table["target"] is None
    assert table["met"] is None


def test_jobs_take_turns_and_the_first_turn_does_not_count(monkeypatch):
    spent = {"a": iter([100.0, 1.0, 9.0, 2.0]), "b": iter([100.0, 5.0, 4.0, 6.0])}
    order = []

    def seconds_of(job):
        order.append(job())
        return next(spent[order[-1]])

    monkeypatch.setattr("benchmarks.measure.seconds_of", seconds_of)
    assert medians([lambda: "a", lambda: "b"], 3) == [2.0, 5.0]
    assert order == ["a", "b"] * 4


def test_a_machine_is_named_without_its_host(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "secret")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200 (x)")
    name = results.machine_name()
    assert name.endswith("-cores-nvidia-h200-x-")
    assert "secret" not in name


def test_the_table_and_the_plot_show_every_row(tmp_path):
    rows = [
        faster("first", 1.0, 2.0, at_least(3)),
        as_much("second", 1.0, "MB", 2.0, at_most(3)),
        Row("third", 1.0, "s", 1.0, 1.0, Goal(5, at_least=False, of="value")),
        as_much("fourth", 1.0, "s", 1.0),
    ]
    lines = results.table(rows).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["first", "second", "third", "fourth"]
    assert [line.split()[-1] for line in lines[2:5]] == ["MISSED", "met", "met"]
    results.plot(rows, "a title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_the_bare_loop_computes_what_the_engine_computes():
    simulator = build(overhead.config("loop", devices=3, width=4, rounds=2))
    world = simulator.federation
    clients = [world.train[device.id] for device in world.devices]
    weights = {name: t.clone() for name, t in simulator.net.state_dict().items()}
    for record in simulator.rounds():
        last = record.snapshot.server.weights
    net = nets.build("convnet", num_classes=10, width=4)
    net.load_state_dict(weights)
    bare = bare_loop.rounds(net, clients, world.test["noise"])
    accuracy = [bare() for _ in range(2)][-1]
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(tensor, last[name], rtol=1e-4, atol=1e-6)
    assert 100 * accuracy == pytest.approx(record.mean_accuracy)


def test_the_release_masks_both_sides_of_a_convolution_and_keeps_its_size():
    net = nets.build("resnet10", num_classes=10, width=8)
    shapes = {name: tensor.shape for name, tensor in net.state_dict().items()}
    release_way.masked(net, 0.5)
    inner: Any = net.get_submodule("stages.0.0.second.0")
    kept = inner.weight_mask.sum((2, 3)) > 0  # (out, in)
    assert (kept.any(1).sum(), kept.any(0).sum()) == (4, 4)
    release_way.unmasked(net)
    assert {name: tensor.shape for name, tensor in net.state_dict().items()} == shapes
    assert int((inner.weight == 0).sum()) == 9 * (8 * 8 - 4 * 4)


def test_torch_gets_its_switches_back():
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with release_way.torch_defaults():
            assert not torch.backends.cudnn.deterministic
        assert torch.backends.cudnn.deterministic
    finally:
        torch.backends.cudnn.deterministic = before


@pytest.mark.slow
def test_the_rounds_of_the_paper_are_measured_beside_the_release():
    small = ("net.width=4", "train.epochs=2", "train.batch_size=8", "fleet.devices=5")
    data = (f"data={NOISE}", "data.devices=5", "data.each=12", "data.protocol=paper")
    contest = gpu_rounds.Contest("tiny round", None, 20, 0.35, (*small, *data))
    rows = list(gpu_rounds.contest_rows(contest, ON_CPU, repeats=1, workers=(0,)))
    assert [row.goal.bound if row.goal else None for row in rows] == [20, 0.35, None] * 2
    for row in rows:
        assert "loop fp32" in row.name
        assert row.ratio == pytest.approx(row.baseline / row.value)
        assert row.value > 0


def test_the_release_is_run_with_the_loaders_it_is_fastest_with(monkeypatch):
    simulator = build(overhead.config("loop", devices=3, width=4, rounds=1))
    seconds = {0: 2.0, 1: 1.0}
    monkeypatch.setattr(release_way.ReleaseWay, "round", lambda self: {})
    monkeypatch.setattr(gpu_rounds, "seconds_of", lambda job: seconds[job.__self__.workers])
    chosen: Any = gpu_rounds.release_round(simulator, workers=(0, 1))
    assert chosen.__self__.workers == 1


def test_without_the_images_a_line_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_rounds, "Engine", lambda: ON_CPU)
    notes = list(gpu_rounds.measure(Options(data=tmp_path)))
    assert len(notes) == 2
    for benchmark, note in zip(("digits", "office_caltech"), notes, strict=True):
        assert isinstance(note, str)
        assert f"data prepare {benchmark}" in note
        assert "--data" in note


def test_a_step_is_what_an_additional_epoch_costs_by_its_steps(monkeypatch):
    fleet = gpu_steps.Fleet("resnet10", 4, "all", devices=2, batches=1)
    seconds = [0.3, 0.2, 0.9, 0.5]  # rho .8 with 4 and 2 epochs, then rho 0

    def timed(work, repeats):
        for job in work:
            job()  # a whole round of each must run
        return seconds

    monkeypatch.setattr(gpu_steps, "medians", timed)
    row = gpu_steps.step_row(fleet, ON_CPU, epochs=2, repeats=1)
    assert row.value == pytest.approx(1e3 * 0.1 / 4)  # ms; two devices, two more epochs of a step
    assert row.ratio == pytest.approx(4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("part", [gpu_rounds, gpu_steps])
def test_without_a_gpu_its_parts_say_so(part):
    (note,) = part.measure(Options())
    assert "CUDA" in note


def test_pictures_of_noise_are_the_same_every_time():
    assert torch.equal(examples(4, 8).images, examples(4, 8).images)


def test_the_engine_page_shows_what_was_measured():
    assert page.insert(page.PAGE.read_text(), page.measured()) == page.PAGE.read_text()


def test_a_page_shows_all_rows_with_their_targets_met_or_not():
    names = ("name", "value", "unit", "baseline", "ratio", "target", "met")
    rows = [
        dict(zip(names, facts, strict=True))
        for facts in (
            ("a", 2.0, "s", 4.0, 2.0, 1.5, True),
            ("b", 3.0, "s", 3.0, 1.0, 1.5, False),
            ("c", 3.0, "s", 3.0, 1.0, None, None),
        )
    ]
    about = {
        "machine": "m",
        "torch": "1",
        "python": "2",
        "command": "x",
        "when": "2026-01-01T00:00",
    }
    text = page.insert(f"x {page.BEGIN} old {page.END} y", [{**about, "rows": rows}])
    assert "| a | 2 s | 4 s | 2 | 1.5 | met |" in text
    assert "| b | 3 s | 3 s | 1 | 1.5 | **missed** |" in text
    assert "| c | 3 s | 3 s | 1 |  |  |" in text
    assert "old" not in text
    assert text.endswith(" y")
