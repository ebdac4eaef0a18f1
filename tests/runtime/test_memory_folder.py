"""Memories on disk: what a complete checkpoint refers to is there, whatever happens later."""

import gc
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.test_memory import BYTES, files, holding, values

from dapperfl.errors import CheckpointError
from dapperfl.runtime import memory_folder as module
from dapperfl.runtime.memory import Memories, file_name
from dapperfl.runtime.memory_folder import Mark, MemoryFolder


class Run:
    """A run's memories with its last two checkpoints, of which it keeps the marks."""

    def __init__(self, folder: Path, limit: int = 0) -> None:
        self.folder, self.limit = folder, limit
        self.marks: dict[int, Mark] = {}
        self.now = MemoryFolder(folder, limit).view({})

    @property
    def store(self) -> MemoryFolder:
        assert isinstance(self.now.store, MemoryFolder)
        return self.now.store

    def checkpoint(self, round_num: int) -> None:
        self.marks[round_num] = self.store.save(self.now)
        self.marks = {each: self.marks[each] for each in sorted(self.marks)[-2:]}
        self.store.settle(round_num, self.marks)
        self.now = self.store.view(self.now)  # the next round's

    def resume(self, round_num: int) -> Memories:
        """Go on in a new process, as it were."""
        marks = {each: mark for each, mark in self.marks.items() if each <= round_num}
        self.now = MemoryFolder(self.folder, self.limit).restore(round_num, marks)
        self.marks = marks
        return self.now


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.integers(0, 4)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("resume"), st.integers(0, 1)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, limit=st.sampled_from([0, 2 * BYTES, 10**6]))
def test_any_sequence_of_rounds_and_kills_gives_what_a_dict_gives(tmp_path_factory, steps, limit):
    run = Run(tmp_path_factory.mktemp("run"), limit)
    model, past, value = dict[int, float](), dict[int, dict[int, float]](), 0
    for step, number in steps:
        if step == "put":
            value += 1
            run.now[number], model[number] = holding(value), float(value)
        elif step == "delete" and number in model:
            del run.now[number], model[number]
        elif step == "checkpoint":
            round_num = max(past, default=0) + 1
            run.checkpoint(round_num)
            past = {each: past[each] for each in run.marks if each in past}
            past[round_num] = dict(model)
        elif step == "resume" and len(past) > number:
            back = sorted(past)[-1 - number]
            run.resume(back)
            model, past = dict(past[back]), {each: past[each] for each in run.marks}
        assert values(run.now) == model
    for each in sorted(past, reverse=True):
        assert values(run.resume(each)) == past[each]


def test_only_what_changed_is_written_and_only_what_is_needed_stays(tmp_path):
    run = Run(tmp_path, limit=10**6)
    run.now.update({client: holding(client) for client in range(50)})
    run.checkpoint(1)
    before = {path: path.stat().st_mtime_ns for path in files(run.store)}
    assert len(before) == 50
    journal = (tmp_path / "journal.jsonl").stat().st_size
    run.now[7] = holding(70)
    run.checkpoint(2)
    after = {path: path.stat().st_mtime_ns for path in files(run.store)}
    assert len(after.keys() - before.keys()) == 1
    assert after.items() >= before.items()  # the first checkpoint needs client 7's old memory
    added = (tmp_path / "journal.jsonl").read_bytes()[journal:].splitlines()
    assert [json.loads(line)["client"] for line in added] == [7]
    run.checkpoint(3)
    assert len(files(run.store)) == 50


def test_nothing_is_written_where_nothing_is_remembered(tmp_path):
    run = Run(tmp_path / "memory")
    run.checkpoint(1)
    assert run.resume(1) == {}
    assert not (tmp_path / "memory").exists()


def test_a_checkpoint_that_was_not_completed_changes_nothing(tmp_path):
    run = Run(tmp_path)
    run.now[0] = holding(1)
    run.checkpoint(1)
    run.now[0] = holding(2)
    run.now[1] = holding(3)
    run.store.save(run.now)  # and killed before the checkpoint had its name
    assert values(run.resume(1)) == {0: 1.0}
    assert len(files(run.store)) == 3
    run.now[2] = holding(4)
    run.checkpoint(2)
    assert values(run.resume(2)) == {0: 1.0, 2: 4.0}
    assert len(files(run.store)) == 2


@pytest.mark.parametrize("when", range(6))
@pytest.mark.parametrize("limit", [0, 10**6])
def test_a_disk_that_fails_at_any_sync_loses_nothing(tmp_path, monkeypatch, when, limit):
    run = Run(tmp_path, limit)
    run.now.update({0: holding(1), 1: holding(2)})
    run.checkpoint(1)
    run.now.update({1: holding(3), 2: holding(4)})
    real, count = os.fsync, iter(range(100))

    def fsync(handle):
        if next(count) == when:
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        failed = False
        try:
            run.checkpoint(2)
        except OSError:
            failed = True
    assert failed == (when < 4)  # two memories, the journal, the folder
    assert values(run.resume(1 if failed else 2)) == (
        {0: 1.0, 1: 2.0} if failed else {0: 1.0, 1: 3.0, 2: 4.0}
    )


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_memory_damages_the_checkpoints_that_need_it_and_no_other(tmp_path, damage):
    run = Run(tmp_path)
    run.now.update({0: holding(1), 1: holding(2)})
    run.checkpoint(1)
    run.now[1] = holding(3)
    run.checkpoint(2)
    path = files(run.store)[-1]
    assert path.name == "00001-00000003.safetensors"
    harm(path, damage)
    with pytest.raises((OSError, ValueError), match=path.name):
        run.resume(2)
    assert values(run.resume(1)) == {0: 1.0, 1: 2.0}


def harm(path: Path, damage: str) -> None:
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 255])
        path.write_bytes({"cut": content[:-1], "flip": flipped}[damage])


def test_a_damaged_journal_is_noticed(tmp_path):
    run = Run(tmp_path)
    run.now[0] = holding(1)
    run.checkpoint(1)
    harm(tmp_path / "journal.jsonl", "flip")
    with pytest.raises(ValueError, match="journal of client memories does not match"):
        run.resume(1)


def test_what_would_take_long_to_check_is_checked_when_it_is_read(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.now.update({0: holding(1), 1: holding(2)})
    run.checkpoint(1)
    first, second = files(run.store)
    monkeypatch.setattr(module, "CHECKED", second.stat().st_size)
    harm(first, "flip")  # the older one
    run.resume(1)
    assert float(run.now[1]["net/weight"]) == 2
    with pytest.raises(CheckpointError, match=rf"{first.name} does not match its SHA-256"):
        run.now[0]
    harm(second, "flip")
    with pytest.raises(ValueError, match=rf"{second.name} does not match its SHA-256"):
        run.resume(1)


def test_the_end_of_a_process_removes_nothing(tmp_path):
    run = Run(tmp_path)
    run.now[0] = holding(1)
    run.checkpoint(1)
    marks, store = run.marks, run.store
    del run, store
    gc.collect()
    assert values(MemoryFolder(tmp_path).restore(1, marks)) == {0: 1.0}


def test_numbers_may_be_longer_than_they_are_written(tmp_path):
    (tmp_path / file_name(7, 123_456_789)).write_bytes(b"of a killed process")
    assert MemoryFolder(tmp_path).add(7, {}).number == 123_456_790
