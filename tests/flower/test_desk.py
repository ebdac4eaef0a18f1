"""What a server writes down of itself, also when the disk takes nothing any more."""

import errno
from pathlib import Path

import pytest

from dapperfl.errors import CheckpointError
from dapperfl.flower.desk import Desk
from dapperfl.flower.keyring import Keyring
from dapperfl.flower.place import Place
from dapperfl.lab import folder
from dapperfl.lab.folder import read_json
from dapperfl.runtime.inbox import Ledger


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Place(tmp_path / "out"))


@pytest.fixture
def fill(monkeypatch):
    """Return what fills the disk: no new file finds a place on it."""

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    return lambda: monkeypatch.setattr(folder, "write_atomically", full)


def test_a_full_disk_is_one_line_that_says_how_to_go_on(desk, fill):
    fill()
    words = r"No space left on device; when that is solved, continue with --out .*out --resume"
    with pytest.raises(CheckpointError, match=rf"run\.json: {words}"):
        desk.run_name()
    with pytest.raises(CheckpointError, match=rf"ledger\.json: {words}"):
        desk.write_ledger(Ledger())
    with pytest.raises(CheckpointError, match=rf"status\.json: {words}"):
        desk.tell("running")


def test_a_damaged_note_of_keys_is_named_with_what_removing_it_means(desk):
    assert desk.read_keyring() == Keyring()
    desk.write_keys(Keyring.of({7: b"key"}, {}))
    desk.place.claims.write_text("[1]")
    with pytest.raises(CheckpointError, match=r"claims\.json is damaged: .*any known key may then"):
        desk.read_keyring()
    desk.place.keys.write_text("{}")
    with pytest.raises(CheckpointError, match=r"keys\.json is damaged: .*start the server again"):
        desk.read_keyring()


def test_why_a_server_has_ended_is_told_on_a_full_disk_too(desk, fill):
    desk.tell("running", "a" * 250, joined=3)
    fill()
    desk.tell_failure("cannot write rounds.jsonl: No space left on device")
    assert read_json(desk.place.status) == {
        "state": "failed",
        "message": "cannot write rounds.jsonl: No space left on device",
        "joined": 0,
    }


def test_a_failure_that_cannot_be_told_hides_no_other(desk, fill):
    fill()
    desk.tell_failure("the first trouble")
    assert not desk.place.status.exists()
