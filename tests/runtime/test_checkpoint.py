import logging
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.messages import Device, LocalModel, ServerState
from dapperfl.core.state import State
from dapperfl.errors import CheckpointError
from dapperfl.runtime.checkpoint import Snapshot, load_checkpoint, save_checkpoint

FLEET = (Device(0, "light", 0.0, 4), Device(1, "dark", 0.8, 4))


def at_round(round_num: int, memories: dict[int, State] | None = None) -> Snapshot:
    model = LocalModel(tiny_net(round_num).state_dict(), tiny_graph().full())
    extra = {"prototypes": torch.randn(2, 3)} if round_num else {}
    mean = tiny_net(round_num + 1).state_dict() if round_num else {}
    styles = {"rows": torch.randn(2, 4, 3), "known": torch.tensor([True, False])}
    server = ServerState(round_num, model, FLEET, extra, mean, styles if round_num else {})
    return Snapshot(server, memories or {}, round_num % 2)


def assert_equal(ours: Snapshot, theirs: Snapshot) -> None:
    def states(snapshot: Snapshot) -> list[State]:
        own = [snapshot.memories[client] for client in sorted(snapshot.memories)]
        server = snapshot.server
        return [server.weights, server.extra, server.mean, server.styles, *own]

    assert sorted(ours.memories) == sorted(theirs.memories)
    for mine, other in zip(states(ours), states(theirs), strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)
        assert all(mine[name].dtype == other[name].dtype for name in mine)
    assert ours.server.round_num == theirs.server.round_num
    assert ours.empty_rounds == theirs.empty_rounds
    assert ours.server.fleet == theirs.server.fleet


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    clients=st.lists(st.integers(0, 99), unique=True, max_size=3), round_num=st.integers(1, 99_999)
)
def test_what_is_saved_is_what_is_read(tmp_path: Path, clients, round_num):
    memories = {c: {"net/conv.weight": torch.randn(2), "n": torch.tensor(c)} for c in clients}
    memories |= {100: {}}
    saved = at_round(round_num, memories)
    folder = tmp_path / str(round_num)
    save_checkpoint(folder, saved)
    found = load_checkpoint(folder, at_round(0))
    assert found is not None
    assert_equal(found, saved)


def test_no_checkpoint_is_none(tmp_path):
    assert load_checkpoint(tmp_path / "nothing", at_round(0)) is None


def test_the_last_two_are_kept(tmp_path):
    for round_num in (1, 2, 3, 4):
        save_checkpoint(tmp_path, at_round(round_num))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00003", "round-00004"]


@pytest.mark.parametrize("victim", ["tensors.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, victim, damage):
    for round_num in (1, 2):
        save_checkpoint(tmp_path, at_round(round_num))
    path = tmp_path / "round-00002" / victim
    content = path.read_bytes()
    half = len(content) // 2
    if damage == "gone":
        path.unlink()
    else:
        flipped = content[:half] + bytes([content[half] ^ 255]) + content[half + 1 :]
        path.write_bytes({"cut": content[:half], "flip": flipped, "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        found = load_checkpoint(tmp_path, at_round(0))
    assert found is not None
    assert found.server.round_num == 1
    assert "round-00002" in caplog.text


def test_an_error_only_if_none_is_left(tmp_path):
    save_checkpoint(tmp_path, at_round(1))
    (tmp_path / "round-00001" / "tensors.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no intact checkpoint is left"):
        load_checkpoint(tmp_path, at_round(0))


def test_a_checkpoint_of_another_net_is_not_taken(tmp_path):
    save_checkpoint(tmp_path, at_round(1))
    other = LocalModel(tiny_net(0, width=4).state_dict(), tiny_graph().full())
    start = replace(at_round(0), server=ServerState(0, other, FLEET))
    with pytest.raises(CheckpointError, match="no intact checkpoint"):
        load_checkpoint(tmp_path, start)


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_memory_makes_the_checkpoint_before_be_used(tmp_path, caplog, damage):
    memories = {client: {"seen": torch.tensor([1.0])} for client in (0, 1)}
    save_checkpoint(tmp_path, at_round(1, memories))
    saved = at_round(2, {**memories, 1: {"seen": torch.tensor([2.0])}})
    save_checkpoint(tmp_path, saved)
    path = sorted((tmp_path / "memory").glob("*.safetensors"), key=lambda each: each.stem[-8:])[-1]
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 255])
        path.write_bytes({"cut": content[:-1], "flip": flipped}[damage])
    with caplog.at_level(logging.WARNING):
        found = load_checkpoint(tmp_path, at_round(0))
    assert found is not None
    assert found.server.round_num == 1
    assert found.memories[1]["seen"].tolist() == [1.0]
    assert "round-00002 is damaged" in caplog.text
    save_checkpoint(tmp_path, replace(saved, memories={**found.memories, **saved.memories}))
    again = load_checkpoint(tmp_path, at_round(0))
    assert again is not None
    assert_equal(again, saved)


def test_a_checkpoint_of_another_version_is_not_called_damaged(tmp_path):
    save_checkpoint(tmp_path, at_round(1))
    path = tmp_path / "round-00001" / "checkpoint.json"
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 1'))
    said = r"round-00001 was written by another version .*schema 1, this one reads 2.*another --out"
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(tmp_path, at_round(0))


def test_a_later_checkpoint_that_could_not_be_used_does_not_push_out_good_ones(tmp_path):
    for round_num in (1, 2, 6):
        save_checkpoint(tmp_path, at_round(round_num))
    (tmp_path / "round-00006" / "checkpoint.json").write_text("{")
    save_checkpoint(tmp_path, at_round(3))
    rounds = sorted(path.name for path in tmp_path.glob("round-*"))
    assert rounds == ["round-00002", "round-00003"]


def test_rounds_are_ordered_as_numbers(tmp_path):
    for round_num in (99_999, 100_000):
        save_checkpoint(tmp_path, at_round(round_num))
    found = load_checkpoint(tmp_path, at_round(0))
    assert found is not None
    assert found.server.round_num == 100_000


def test_what_a_killed_writer_left_is_swept_away(tmp_path):
    (tmp_path / ".round-00003.999").mkdir()
    (tmp_path / ".round-00003.999" / "tensors.safetensors").write_bytes(b"half")
    assert load_checkpoint(tmp_path, at_round(0)) is None
    save_checkpoint(tmp_path, at_round(3))
    assert [path.name for path in tmp_path.iterdir()] == ["round-00003"]


def test_a_round_saved_again_replaces_the_damaged_one(tmp_path):
    save_checkpoint(tmp_path, at_round(1))
    (tmp_path / "round-00001" / "checkpoint.json").write_text("{")
    saved = at_round(1)
    save_checkpoint(tmp_path, saved)
    found = load_checkpoint(tmp_path, at_round(0))
    assert found is not None
    assert_equal(found, saved)


def test_copies_under_other_names_are_left_alone(tmp_path):
    save_checkpoint(tmp_path, at_round(1, {0: {"n": torch.tensor(1)}}))
    copies = ("round-00001 (copy)", "round-old", "memory/00000-00000001 (copy).safetensors")
    for name in copies:
        (tmp_path / name).mkdir()
    found = load_checkpoint(tmp_path, at_round(0))
    assert found is not None
    assert found.server.round_num == 1
    save_checkpoint(tmp_path, at_round(2))
    save_checkpoint(tmp_path, at_round(3))
    assert all((tmp_path / name).is_dir() for name in copies)


def test_a_disk_that_takes_no_more_is_an_error_of_the_system(tmp_path):
    save_checkpoint(tmp_path, at_round(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*tensors\.safetensors"):
            save_checkpoint(tmp_path, at_round(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found = load_checkpoint(tmp_path, at_round(0))
    assert found is not None
    assert found.server.round_num == 1
