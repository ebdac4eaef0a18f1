"""A server that is killed at any moment goes on where it was, and nothing is lost."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.flower.village import Killed, Village, nodes_of, serve_in, toy

from dapperfl.core.state import State
from dapperfl.errors import CheckpointError
from dapperfl.flower.desk import Desk
from dapperfl.flower.place import Place
from dapperfl.flower.remembered import Remembered
from dapperfl.lab.folder import read_json, read_tensors
from dapperfl.lab.records import load_records

SETTINGS = ("method=moon", "rounds=3")  # its clients remember their last net


def final(folder: Path) -> State:
    return read_tensors(folder / "model.safetensors")[0]


def run_to_the_end(folder: Path) -> Path:
    config = toy(*SETTINGS)
    serve_in(Village(nodes_of(config, folder)), config, folder / "run")
    return folder / "run"


def killed_at(folder: Path, message: int) -> Village:
    """Kill a server when it fetches the reply to one of its tasks, counted from 1."""
    config = toy(*SETTINGS)
    village = Village(nodes_of(config, folder))

    def kill() -> None:
        tasks = [each for each in village.pushed if each.metadata.message_type == "train"]
        answered = len(tasks) - sum(reply is not None for reply in village.replies.values())
        if answered >= message:
            raise Killed

    village.before_pull = kill
    with pytest.raises(Killed):
        serve_in(village, config, folder / "run")
    village.before_pull = lambda: None
    return village


def back(village: Village) -> Village:
    """Return the same devices behind a new server, under other numbers."""
    village.replies.clear()
    nodes = list(village.nodes.values())
    village.nodes.clear()
    for node in nodes:
        village.add(node)
    return village


# Three tasks a round: after the second reply, within round 1; after the third, when round 1 is
# done and round 2 is asked for; after the fifth and the eighth, within rounds 2 and 3.
@pytest.mark.parametrize("message", [2, 3, 5, 8])
@pytest.mark.slow
def test_a_killed_server_ends_where_it_would_have_ended(message, tmp_path):
    whole = run_to_the_end(tmp_path / "whole")
    village = killed_at(tmp_path, message)
    done = len(load_records(tmp_path / "run")) if (tmp_path / "run").exists() else 0
    assert done == message // 3
    serve_in(back(village), toy(*SETTINGS), tmp_path / "run")
    ours, theirs = final(tmp_path / "run"), final(whole)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    lines, others = load_records(tmp_path / "run"), load_records(whole)
    assert [(line.round, line.loss) for line in lines] == [(o.round, o.loss) for o in others]
    assert not any(line.left_out for line in lines)


def test_a_run_between_two_rounds_goes_on_with_the_next(tmp_path):
    whole = run_to_the_end(tmp_path / "whole")
    short = toy("method=moon", "rounds=1")
    village = Village(nodes_of(short, tmp_path))
    serve_in(village, short, tmp_path / "run")
    village.pushed.clear()
    serve_in(back(village), toy(*SETTINGS), tmp_path / "run")
    ours, theirs = final(tmp_path / "run"), final(whole)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    trained = [each for each in village.pushed if each.metadata.message_type == "train"]
    assert len(trained) == 2 * 3


def test_a_finished_run_asks_nobody(tmp_path):
    config = toy("method=fedavg", "rounds=1")
    village = Village(nodes_of(config, tmp_path))
    serve_in(village, config, tmp_path / "run")
    village.pushed.clear()
    serve_in(village, config, tmp_path / "run")
    assert not village.pushed
    assert read_json(tmp_path / "run" / ".flower" / "status.json")["state"] == "finished"


def test_the_run_keeps_its_name_and_another_has_another(tmp_path):
    names = []
    for folder, rounds in (("one", 1), ("one", 2), ("two", 1)):
        config = toy("method=fedavg", f"rounds={rounds}")
        serve_in(Village(nodes_of(config, tmp_path)), config, tmp_path / folder)
        names.append(read_json(tmp_path / folder / ".flower" / "run.json")["run"])
    assert names[0] == names[1] != names[2]


def test_a_device_remembers_as_of_before_a_round_and_only_a_little(tmp_path):
    remembered = Remembered(tmp_path / "run-1")
    assert (remembered.earliest, remembered.before(1)) == (1, {})
    for round_num in (1, 2, 3, 5):
        remembered.keep(round_num, {"at": torch.tensor(round_num)})
    assert remembered.earliest == 4
    assert int(remembered.before(6)["at"]) == 5
    assert int(remembered.before(5)["at"]) == 3  # asked again: as it was then
    assert int(remembered.before(4)["at"]) == 3
    assert len(list((tmp_path / "run-1").iterdir())) == 3


def test_a_device_does_not_take_a_copy_for_what_it_remembers(tmp_path):
    remembered = Remembered(tmp_path)
    remembered.keep(1, {"at": torch.tensor(1)})
    (tmp_path / "round-000001 (copy).safetensors").write_bytes(b"")
    (tmp_path / ".round-000002.safetensors.part").write_bytes(b"")
    assert int(remembered.before(2)["at"]) == 1
    assert remembered.earliest == 1


@pytest.mark.parametrize("name", ["ledger.json", "run.json"])
@pytest.mark.parametrize("text", ["", "null", "{}", '{"strikes"', '{"strikes": 1, "refused": 2}'])
def test_a_damaged_note_of_the_server_is_named_with_what_removing_it_means(tmp_path, name, text):
    desk = Desk(Place(tmp_path))
    desk.place.folder.mkdir()
    (desk.place.folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=rf"{name} .*; bring it .* or remove it: devices"):
        (desk.run_name if name == "run.json" else desk.read_ledger)()


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew_over_its_rounds(tmp_path):
    short = toy("method=fedavg", "rounds=2")
    serve_in(Village(nodes_of(short, tmp_path)), short, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    village = Village(nodes_of(short, tmp_path))
    with pytest.raises(CheckpointError, match="has 2 rounds, but their checkpoint is missing"):
        serve_in(village, toy("method=fedavg", "rounds=3"), tmp_path / "run")
    assert len(load_records(tmp_path / "run")) == 2
