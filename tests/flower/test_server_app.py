"""The ServerApp as Flower calls it: its folder from the environment, its end in a file."""

from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from tests.flower.village import Node, Village, assembled, nodes_of, toy, training_replies
from tests.runtime.letters import closed
from tests.runtime.letters import opened as taken_apart

from dapperfl.core.styles import OWN
from dapperfl.errors import ConfigError, RunError
from dapperfl.flower import server_app
from dapperfl.flower.place import RUN, Place
from dapperfl.flower.post import Post
from dapperfl.lab.config import to_toml
from dapperfl.lab.experiment import run
from dapperfl.lab.folder import read_json, read_tensors
from dapperfl.lab.loading import load_run
from dapperfl.lab.records import load_records
from dapperfl.runtime.wire import SHARED


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Return a function that runs the ServerApp on a config in one process."""

    def serve(village: Village, config) -> Place:
        place = Place(tmp_path / "run")
        place.folder.mkdir(parents=True, exist_ok=True)
        place.config.write_text(to_toml(config))
        monkeypatch.setenv(RUN, str(place.out))
        monkeypatch.setattr(
            server_app, "Post", lambda grid: Post(grid, village.clock.now, village.clock.sleep)
        )
        server_app.app(village, Context(1, 1, {}, RecordDict(), {}))
        return place

    return serve


def test_it_leaves_the_folder_that_a_simulation_would(served, tmp_path):
    config = toy()
    place = served(Village(nodes_of(config, tmp_path)), config)
    run(config, tmp_path / "sim")
    names = {path.name for path in (tmp_path / "sim").iterdir() if path.name[0] != "."}
    assert names == {path.name for path in place.out.iterdir() if path.name[0] != "."}
    ours, theirs = (read_json(each / "summary.json") for each in (place.out, tmp_path / "sim"))
    assert ours.keys() == theirs.keys()
    for key in ("global_accuracy", "domain_accuracy", "levels", "devices", "dense"):
        assert ours[key] == theirs[key], key
    left, right = (
        read_tensors(each / "model.safetensors")[0] for each in (place.out, tmp_path / "sim")
    )
    assert all((tensor == right[name]).all() for name, tensor in left.items())
    assert load_run(place.out) is not None
    assert read_json(place.status)["state"] == "finished"
    assert "device 2 joined: domain" in place.notes.read_text()
    assert [line.round for line in load_records(place.out)] == [1, 2]


def test_who_is_missing_is_in_the_status(served, tmp_path):
    config = toy("deploy.patience=3")
    village = Village(nodes_of(config, tmp_path)[:1])
    with pytest.raises(RunError):
        served(village, config)
    status = read_json(Place(tmp_path / "run").status)
    assert status["state"] == "failed"
    assert status["message"].startswith("1 of 3 devices joined within 3 s; missing: 1, 2; start")


def test_a_server_that_gives_up_says_that_it_has_refused_some(served, tmp_path):
    config = toy("deploy.patience=3")
    nodes = nodes_of(config, tmp_path)
    nodes[2].settings["rho"] = 0.3
    with pytest.raises(
        RunError, match=r"missing: 2; 1 that wanted to join were refused, see above"
    ):
        served(Village(nodes), config)


def test_a_folder_with_another_run_is_not_touched(served, tmp_path):
    config = toy("rounds=1")
    served(Village(nodes_of(config, tmp_path)), config)
    other = toy("rounds=1", "train.lr=0.9")
    with pytest.raises(Exception, match=r"train\.lr = 0\.9, but the run was started with"):
        served(Village(nodes_of(config, tmp_path)), other)


def test_waiting_may_change_when_a_run_goes_on(served, tmp_path):
    config = toy("rounds=1")
    served(Village(nodes_of(config, tmp_path)), config)
    village = Village(nodes_of(config, tmp_path)[:2])
    changed = ("deploy.devices=2", "deploy.deadline=9", "deploy.patience=9", "checkpoint_every=5")
    place = served(village, toy("rounds=2", *changed))
    (absence,) = load_records(place.out)[1].left_out
    assert (absence.id, absence.reason) == (2, "the device is not connected")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["deploy.devices=4"], "deploy.devices = 4, but the benchmark is dealt out to 3 devices"),
        (["deploy.min_replies=4"], "deploy.min_replies = 4, but a round asks 3 devices"),
        (
            ["deploy.min_replies=3", "fleet.participation=0.6"],
            "deploy.min_replies = 3, but a round asks 2 devices",
        ),
    ],
)
def test_more_devices_than_there_can_be_are_not_waited_for(served, tmp_path, settings, words):
    config = toy(*settings)
    village = Village(nodes_of(config, tmp_path))
    with pytest.raises(ConfigError, match=words):
        served(village, config)
    assert village.clock.at < config.deploy.patience
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_a_compact_net_whose_devices_are_gone_says_that_nobody_measured_it(tmp_path, caplog):
    config = toy("rounds=1", "net=resnet10", "method=heterofl", "method.bn_statistics=recalibrate")
    village = Village(nodes_of(config, tmp_path))
    simulator = assembled(village, config, tmp_path / "run")
    (record,) = simulator.rounds()
    measured = simulator.compact(record.snapshot.server, 0.4)
    assert "nobody measured" not in caplog.text
    village.nodes.clear()
    left = simulator.compact(record.snapshot.server, 0.4)
    assert "in the compact net of rho = 0.4 (device 2: the device is not connected)" in caplog.text
    name = next(each for each in left.weights if each.endswith("running_var"))
    assert not torch.equal(measured.weights[name], left.weights[name])


def test_a_device_whose_pictures_cannot_be_is_refused_before_others_train_in_their_style(tmp_path):
    config = toy("rounds=5", "method.restyle_rounds=0")
    nodes = nodes_of(config, tmp_path)

    def too_bright(node: Node, data: bytes) -> bytes:
        facts, tensors = taken_apart(data)
        tensors[f"{SHARED}{OWN}"].fill_(900.0)
        return closed(facts, tensors)

    nodes[0].twist = training_replies(too_bright)
    simulator = assembled(Village(nodes), config, tmp_path / "run")
    for record in simulator.rounds():
        (out,) = record.left_out
        assert out.device.id == 0
        assert "its_style" in out.reason or "put aside" in out.reason


def test_it_says_that_it_is_there_before_it_reads_any_pictures(served, monkeypatch):
    seen: list[Path] = []
    monkeypatch.setattr(server_app, "serve", lambda config, out, post, desk: seen.append(out))
    place = served(Village(), toy())
    assert seen == [place.out]
    assert read_json(place.status)["state"] == "starting"
