"""Devices with folders of their own, and a server that has no picture at all."""

import json
from unicodedata import normalize

import numpy as np
import pytest
import torch
from PIL import Image
from tests.flower.village import Node, Village, assembled, nodes_of, serve_in, toy
from tests.tiny import tiny_examples

from dapperfl import methods
from dapperfl.core.messages import Device
from dapperfl.data.benchmark import Examples
from dapperfl.data.pictures.tree import find_labelled
from dapperfl.errors import CheckpointError, DataError, MessageError
from dapperfl.flower.desk import Desk
from dapperfl.flower.own_folder import Sides, load_folder, split
from dapperfl.flower.place import Place
from dapperfl.flower.post import Post
from dapperfl.flower.roster import Roster
from dapperfl.flower.server_app import Assembly
from dapperfl.lab.folder import read_json
from dapperfl.lab.records import load_records
from dapperfl.lab.world import MEAN, STD

CLASSES = ("blue", "green", "red")
BLIND = (
    'deploy.classes=["blue","green","red"]',
    "deploy.picture=[3,6,6]",
    "deploy.devices=2",
    "method=fedavg",
)


def write_pictures(folder, count: int, name: str) -> None:
    """Write pictures into class folders; labels are those of the classes in order."""
    examples = tiny_examples(count, "own", name)
    for number, (image, label) in enumerate(zip(examples.images, examples.labels, strict=True)):
        path = folder / CLASSES[label] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image.permute(1, 2, 0))).save(path)


def own_node(tmp_path, number: int, domain: str, rho: float, **extra) -> Node:
    data = tmp_path / f"pictures-{number}"
    write_pictures(data, 20 + number, f"device {number}")
    state = str(tmp_path / f"device-{number}")
    where = {"data": str(data), "domain": domain, "rho": rho, **extra}
    return Node({"device-id": number, "state": state, "modules": "tests.lab.toy_world", **where})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path / "cache"))


def test_a_blind_server_trains_and_tells_what_devices_measured(tmp_path):
    village = Village([own_node(tmp_path, 3, "ink", 0.0), own_node(tmp_path, 8, "paint", 0.5)])
    config = toy(*BLIND)
    out = tmp_path / "run"
    serve_in(village, config, out)
    first, second = load_records(out)
    assert first.accuracy.keys() == first.on_devices.keys() == {"ink", "paint"}
    assert first.accuracy == first.on_devices
    assert second.accuracy == second.on_devices
    fleet = read_json(out / "allocation.json")["devices"]
    assert [(each["id"], each["domain"], each["rho"]) for each in fleet] == [
        (3, "ink", 0.0),
        (8, "paint", 0.5),
    ]
    summary = read_json(out / "summary.json")
    assert [level["mean_accuracy"] for level in summary["levels"]] == [None, None]
    assert summary["domain_accuracy"]["ink"]["last"] == second.accuracy["ink"]


def test_the_accuracy_is_that_of_the_model_the_round_began_with(tmp_path):
    village = Village([own_node(tmp_path, 0, "ink", 0.0), own_node(tmp_path, 1, "ink", 0.0)])
    config = toy(*BLIND)
    simulator = assembled(village, config, tmp_path / "run")
    before = simulator.round(simulator.start()).snapshot  # a net that has learnt something
    found = simulator.round(before)
    net = simulator.judge.nets.holding(before.server.model)
    right = tested = 0
    for number in (0, 1):
        examples = load_folder(tmp_path / f"pictures-{number}", CLASSES, 6)
        train, aside = split(examples, 0.2, config.seed, number)
        assert len(train) + len(aside) == len(examples) == 20 + number
        for image, label in zip(aside.images, aside.labels, strict=True):
            scaled = (image / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(
                3, 1, 1
            )
            right += int(net(scaled[None]).argmax() == label)
            tested += 1
    assert tested == 8
    assert found.accuracy == found.on_devices == {"ink": pytest.approx(100 * right / tested)}
    after = json.loads((tmp_path / "device-0" / "worked.jsonl").read_text().splitlines()[-1])
    assert (after["round"], after["tested"]) == (2, 4)


def test_a_domain_that_nobody_measured_keeps_its_last_figure(tmp_path):
    village = Village([own_node(tmp_path, 0, "ink", 0.0), own_node(tmp_path, 1, "paint", 0.0)])
    simulator = assembled(village, toy(*BLIND, "rounds=3"), tmp_path / "run")
    records = []
    for record in simulator.rounds():
        records.append(record)
        village.nodes.pop(102, None)
    assert records[1].on_devices.keys() == {"ink"}
    assert records[1].accuracy["paint"] == records[0].accuracy["paint"]


def test_an_accuracy_that_nobody_measured_is_said_to_be_none_once(tmp_path, caplog):
    nodes = [own_node(tmp_path, 0, "ink", 0.0), own_node(tmp_path, 1, "paint", 0.0)]
    serve_in(Village(nodes), toy(*BLIND), tmp_path / "measured")
    assert "has measured" not in caplog.text
    nodes[1].settings["keep-aside"] = 0.0
    serve_in(Village(nodes), toy(*BLIND), tmp_path / "run")
    assert [line.accuracy["paint"] for line in load_records(tmp_path / "run")] == [0.0, 0.0]
    told = [each for each in caplog.messages if "has measured" in each]
    assert len(told) == 1
    assert told[0].startswith("no device has measured the model on paint so far: its accuracy is")


def test_a_resumed_run_wants_the_same_devices(tmp_path, caplog):
    nodes = [own_node(tmp_path, 0, "ink", 0.0), own_node(tmp_path, 1, "paint", 0.5)]
    serve_in(Village(nodes), toy(*BLIND, "rounds=1"), tmp_path / "run")
    stranger = own_node(tmp_path, 5, "ink", 0.0)
    write_pictures(tmp_path / "pictures-0", 30, "more of them")  # a folder may grow
    village = Village([stranger, *nodes])
    serve_in(village, toy(*BLIND, "rounds=2"), tmp_path / "run")
    assert "a device is refused: device 5 is none of this run's 2 devices" in caplog.messages
    assert not load_records(tmp_path / "run")[1].left_out


@pytest.mark.parametrize("text", ["{}", "[1]", '{"devices": [{"id": 1}]}', '{"devices": ['])
def test_a_fleet_that_cannot_be_read_again_is_named(tmp_path, text):
    nodes = [own_node(tmp_path, 0, "ink", 0.0), own_node(tmp_path, 1, "paint", 0.5)]
    serve_in(Village(nodes), toy(*BLIND, "rounds=1"), tmp_path / "run")
    (tmp_path / "run" / "allocation.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"allocation\.json (is damaged|cannot be read)"):
        serve_in(Village(nodes), toy(*BLIND, "rounds=2"), tmp_path / "run")


def test_a_server_with_test_pictures_tests_on_them(tmp_path):
    config = toy("deploy.own_folders=true", "deploy.devices=1", "method=fedavg", "rounds=1")
    village = Village([own_node(tmp_path, 0, "ink", 0.0)])
    (record,) = assembled(village, config, tmp_path / "run").rounds()
    assert record.accuracy.keys() == {"dark", "light"}
    assert record.on_devices.keys() == {"ink"}


def test_a_device_without_a_folder_cannot_join_such_a_run(tmp_path, caplog):
    config = toy(*BLIND, "deploy.patience=2")
    village = Village(nodes_of(config, tmp_path))
    with pytest.raises(Exception, match="0 of 2 devices joined"):
        assembled(village, config, tmp_path / "run")
    assert "folders of their own" in caplog.text


def test_pictures_are_read_by_class(tmp_path):
    write_pictures(tmp_path / "mine", 6, "x")
    examples = load_folder(tmp_path / "mine", CLASSES, 6)
    known = tiny_examples(6, "own", "x")
    for image, label in zip(examples.images, examples.labels, strict=True):
        same = [n for n, other in enumerate(known.images) if torch.equal(image, other)]
        assert [int(known.labels[n]) for n in same] == [int(label)]
    (tmp_path / "mine" / "red").rename(tmp_path / "mine" / "pink")
    with pytest.raises(DataError, match="no class of this run: pink"):
        load_folder(tmp_path / "mine", CLASSES, 6)


@pytest.mark.parametrize(("there", "here"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_class_is_the_same_however_its_accents_are_stored(tmp_path, there, here):
    write_pictures(tmp_path, 6, "x")
    (tmp_path / "red").rename(tmp_path / normalize(here, "rosé"))
    examples = load_folder(tmp_path, ("blue", "green", normalize(there, "rosé")), 6)
    assert sorted(examples.labels.tolist()) == sorted(tiny_examples(6, "own", "x").labels.tolist())


def keyed(examples: Examples) -> list[bytes]:
    return [image.numpy().tobytes() for image in examples.images]


def test_a_picture_stays_on_its_side_when_a_folder_changes(tmp_path):
    sides = Sides(tmp_path / "run" / "aside.json", 0.25)
    whole = tiny_examples(80, "own", "x")
    train, aside = sides.split(whole.pick(torch.arange(40)), 3, 7)
    first, second = split(whole.pick(torch.arange(40)), 0.25, 3, 7)
    assert keyed(train) == keyed(first)
    assert keyed(aside) == keyed(second)
    assert sides.path.exists()
    more, apart = sides.split(whole, 3, 7)
    assert set(keyed(more)) >= set(keyed(train))
    assert set(keyed(apart)) >= set(keyed(aside))
    assert len(more) + len(apart) == 80
    assert 5 <= len(apart) - len(aside) <= 16  # some of the new ones, about a quarter
    fewer, left = sides.split(whole.pick(torch.arange(20, 60)), 3, 7)
    assert set(keyed(fewer)) <= set(keyed(more))
    assert set(keyed(left)) <= set(keyed(apart))


def test_copies_of_a_picture_change_nothing(tmp_path):
    twice = tiny_examples(9, "own", "x").pick(torch.arange(18) % 9)
    sides = Sides(tmp_path / "aside.json", 0.4)
    for _ in range(2):
        train, aside = sides.split(twice, 0, 0)
        assert [keyed(train), keyed(aside)] == [keyed(each) for each in split(twice, 0.4, 0, 0)]


def test_a_device_whose_training_pictures_are_gone_trains_on_others(tmp_path):
    sides = Sides(tmp_path / "aside.json", 0.5)
    _, aside = sides.split(tiny_examples(20, "own", "x"), 0, 0)
    train, _ = sides.split(aside, 0, 0)
    assert len(train) == 5


def test_sides_are_drawn_anew_for_another_share_and_a_damaged_note_is_named(tmp_path):
    examples, path = tiny_examples(20, "own", "x"), tmp_path / "aside.json"
    Sides(path, 0.5).split(examples, 0, 0)
    train, aside = Sides(path, 0.0).split(examples, 0, 0)
    assert (len(train), len(aside)) == (20, 0)
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"aside\.json is damaged.*remove it"):
        Sides(path, 0.5).split(examples, 0, 0)


def test_a_folder_must_have_class_folders(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        find_labelled(tmp_path / "nothing")
    with pytest.raises(DataError, match="has no pictures"):
        find_labelled(tmp_path)
    (tmp_path / "x.png").touch()
    with pytest.raises(DataError, match=r"such as x\.png; expected <class>/<image>$"):
        find_labelled(tmp_path)
    (tmp_path / "x.png").unlink()
    write_pictures(tmp_path, 3, "x")
    assert [picture.label for picture in find_labelled(tmp_path)] == list(CLASSES)


def test_a_device_that_wants_the_impossible_does_not_end_the_run(tmp_path, caplog):
    config = toy(*BLIND, "method=dapperfl", "deploy.devices=1", "rounds=1")
    village = Village([own_node(tmp_path, 0, "ink", 0.9999), own_node(tmp_path, 1, "ink", 0.5)])
    serve_in(village, config, tmp_path / "run")
    (line,) = load_records(tmp_path / "run")
    assert set(line.costs) == {1}
    assert "a device is refused: device 0 asks for too little: rho = 0.9999 leaves" in caplog.text


@pytest.mark.parametrize("name", methods.names())
def test_a_device_of_any_common_level_may_join_any_method(tmp_path, name):
    config = toy(*BLIND, f"method={name}")
    village = Village()
    roster = Assembly(config, tmp_path, Post(village), Desk(Place(tmp_path))).roster
    refused = [rho for rho in (0.0, 0.5, 0.8) if not accepts(roster, rho)]
    assert refused == []


def accepts(roster: Roster, rho: float) -> bool:
    try:
        roster.accept(Device(0, "ink", rho, 5))
    except MessageError:
        return False
    return True
