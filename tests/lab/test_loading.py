"""The trained net back in Python, from finished and unfinished runs."""

import itertools
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dapperfl.errors import CheckpointError
from dapperfl.lab.build import build_on, load_federation
from dapperfl.lab.config import Config
from dapperfl.lab.experiment import opened
from dapperfl.lab.folder import RunFolder, read_json, read_tensors, write_tensors
from dapperfl.lab.loading import load_run
from dapperfl.lab.records import load_records
from dapperfl.lab.world import known_world, settled
from dapperfl.sim.simulator import Simulator
from tests.lab.toy_world import load


@pytest.fixture
def copy(finished, tmp_path) -> RunFolder:
    """A run folder to damage."""
    return RunFolder(Path(shutil.copytree(finished, tmp_path / "copy")))


def _accuracy(net: nn.Module, domain: str) -> float:
    world = load(None)
    test = world.domains[domain].test
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (world.mean, world.std))
    with torch.no_grad():
        logits = net((test.images / 255 - mean) / std)
    return 100 * float((logits.argmax(1) == test.labels).float().mean())


def test_the_global_net_is_as_good_as_the_last_round_says(finished):
    net = load_run(finished)
    assert not net.training
    for domain, accuracy in load_records(finished)[-1].accuracy.items():
        assert _accuracy(net, domain) == pytest.approx(accuracy, abs=1e-3)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_a_level_is_a_physically_smaller_net_that_runs(finished, rho):
    net = load_run(str(finished), rho=rho)
    held = sum(p.numel() for p in net.parameters())
    assert held <= (1 - rho) * sum(p.numel() for p in load_run(finished).parameters())
    assert net(torch.zeros(2, 3, 8, 8)).shape == (2, 3)
    weights, _ = read_tensors(RunFolder(finished).level(rho))
    assert all(torch.equal(weights[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("rho", [None, 0.8])
def test_a_net_can_take_pictures_as_files_have_them(finished, rho):
    world = load(None)
    seen = world.domains["dark"].test.images
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (world.mean, world.std))
    net = load_run(finished, rho, pictures=True)
    assert not net.training
    with torch.no_grad():
        wanted = load_run(finished, rho)((seen / 255 - mean) / std)
        assert torch.allclose(net(seen), wanted, atol=1e-5)
        assert torch.equal(net(seen), net(seen.float()))
        exported = torch.export.export(net, (seen[:2],)).module()
        assert torch.allclose(exported(seen[:2]), wanted[:2], atol=1e-5)


def test_an_unfinished_run_knows_how_pictures_are_normalised(toy, tmp_path):
    with opened(toy(), tmp_path) as experiment:
        list(itertools.islice(experiment.rounds(), 1))
    seen = load(None).domains["dark"].test.images
    net = load_run(tmp_path, 0.5, pictures=True)
    assert torch.allclose(net.state_dict()["mean"].flatten(), torch.tensor(load(None).mean))
    assert net(seen).shape == (len(seen), 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [({}, "did not write down how pictures"), ({"mean": "a", "std": [1]}, "a damaged model")],
)
def test_a_model_that_does_not_say_how_pictures_are_normalised_is_refused(copy, change, message):
    weights, about = read_tensors(copy.model)
    kept = {name: about[name] for name in ("classes", "image", "kept")}
    write_tensors(copy.model, weights, kept | change)
    assert load_run(copy.path)(torch.zeros(2, 3, 8, 8)).shape == (2, 3)
    with pytest.raises(CheckpointError, match=message):
        load_run(copy.path, pictures=True)


def test_an_unfinished_run_gives_its_last_checkpoint_and_says_so(toy, tmp_path, caplog):
    with opened(toy(), tmp_path / "run") as experiment:
        for _ in itertools.islice(experiment.rounds(), 2):
            pass
        expected = experiment.snapshot.server.weights
        small = experiment.simulator.compact(experiment.snapshot.server, 0.8)
    with caplog.at_level(logging.WARNING):
        net = load_run(tmp_path / "run")
    assert "is not finished: this is the net after round 2 of 3" in caplog.text
    assert all(torch.equal(expected[name], t) for name, t in net.state_dict().items())
    level = load_run(tmp_path / "run", rho=0.8).state_dict()
    assert all(torch.equal(small.weights[name], tensor) for name, tensor in level.items())


def _served(config: Config) -> Simulator:
    """Build what a server has that knows the classes; the pictures are with the devices."""
    bring = load_federation(config)
    classes = config.deploy.classes
    simulator = build_on(config, replace(bring, classes=classes, test={}))
    simulator.federation = settled(known_world(config), bring.devices)
    return simulator


def test_an_unfinished_run_of_devices_with_own_pictures_gives_its_net(toy, tmp_path):
    own = ["deploy.classes=['red','green','blue','black']", "deploy.picture=[3,8,8]"]
    config = toy(*own)
    with opened(config, tmp_path, make=_served) as experiment:
        list(itertools.islice(experiment.rounds(), 1))
    whole, small = load_run(tmp_path), load_run(tmp_path, 0.5)
    assert whole(torch.zeros(2, 3, 8, 8)).shape == (2, 4)
    sizes = [sum(p.numel() for p in net.parameters()) for net in (whole, small)]
    assert sizes[1] < sizes[0]


def test_an_unfinished_simulation_does_not_mind_settings_of_a_deployment(toy, tmp_path):
    config = toy("deploy.classes=['one','two']", "deploy.picture=[3,8,8]")
    with opened(config, tmp_path) as experiment:
        list(itertools.islice(experiment.rounds(), 1))
    assert load_run(tmp_path)(torch.zeros(2, 3, 8, 8)).shape == (2, 3)


def test_small_nets_whose_statistics_devices_measure_wait_for_the_end(toy, tmp_path):
    own = ["deploy.classes=['red','green','blue']", "deploy.picture=[3,8,8]"]
    config = toy(*own, "net=resnet10", "method=heterofl", "fleet.rhos=[0,0.5]")
    with opened(config, tmp_path, make=_served) as experiment:
        list(itertools.islice(experiment.rounds(), 1))
    assert load_run(tmp_path)(torch.zeros(2, 3, 8, 8)).shape == (2, 3)
    with pytest.raises(CheckpointError, match="measured by devices, at the end"):
        load_run(tmp_path, 0.5)


def test_a_run_without_a_complete_round_has_no_net_yet(toy, tmp_path):
    with opened(toy(), tmp_path / "run"):
        pass
    with pytest.raises(CheckpointError, match="has no complete round yet"):
        load_run(tmp_path / "run")


def test_a_level_that_the_run_does_not_have_is_refused(finished):
    with pytest.raises(
        CheckpointError, match=r"no level rho = 0.3; its levels are \[0.0, 0.5, 0.8\]"
    ):
        load_run(finished, rho=0.3)


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"devices": 3}', '{"devices": [{}]}'])
def test_a_damaged_allocation_is_named(copy, text):
    copy.allocation.write_text(text)
    with pytest.raises(CheckpointError, match=r"allocation\.json is damaged"):
        load_run(copy.path, 0.5)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config.toml; is it a run folder\?"):
        load_run(tmp_path / "nowhere")


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_or_missing_model_is_named(copy, damage):
    if damage is None:
        copy.model.unlink()
    else:
        copy.model.write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"model.safetensors is (damaged|missing)"):
        load_run(copy.path)


def test_weights_of_another_net_are_refused(copy):
    weights, about = read_tensors(copy.model)
    weights["head.bias"] = torch.zeros(7)
    write_tensors(copy.model, weights, about)
    with pytest.raises(CheckpointError, match="does not fit the net of its"):
        load_run(copy.path)


def test_missing_facts_are_named(copy):
    weights, about = read_tensors(copy.level(0.8))
    del about["kept"]
    write_tensors(copy.level(0.8), weights, about)
    with pytest.raises(CheckpointError, match=r"rho-0.80.safetensors is damaged: .*'kept'"):
        load_run(copy.path, rho=0.8)


def test_a_damaged_summary_is_named(copy):
    assert read_json(copy.summary)["rounds"] == 3
    copy.summary.write_text("{")
    with pytest.raises(CheckpointError, match=r"summary.json cannot be read"):
        load_run(copy.path)
