"""A store of memories is a dict, whatever part of it is on disk."""

import gc
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapperfl.core.state import State
from dapperfl.errors import CheckpointError
from dapperfl.runtime.memory import Memories, MemoryStore

BYTES = 8  # of `holding`'s tensors


def holding(value: float) -> State:
    return {
        "net/weight": torch.tensor([float(value)]),
        "n": torch.tensor(int(value), dtype=torch.int32),
    }


def values(memories: Memories) -> dict[int, float]:
    return {client: float(state["net/weight"]) for client, state in memories.items()}


def files(store: MemoryStore) -> list[Path]:
    return sorted(store.folder.glob("*.safetensors"))


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.integers(0, 99)),
        st.tuples(st.just("delete"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 9), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps=operations, limit=st.sampled_from([0, BYTES, 3 * BYTES, 10**6]))
def test_any_sequence_of_steps_gives_what_a_dict_gives(steps, limit):
    store = MemoryStore(limit)
    ours, model = store.view({}), dict[int, float]()
    past: list[tuple[Memories, dict[int, float]]] = [(store.view(ours), {})]
    for step, number, value in steps:
        if step == "put":
            ours[number], model[number] = holding(value), float(value)
        elif step == "delete" and number in ours:
            del ours[number], model[number]
        elif step == "read":
            assert (number in ours) == (number in model)
            found = ours.get(number)
            assert (None if found is None else float(found["net/weight"])) == model.get(number)
        elif step == "snapshot":
            past.append((store.view(ours), dict(model)))
        elif step == "restore":
            before, known = past[number % len(past)]
            ours, model = store.view(before), dict(known)
        assert store.bytes_held <= limit
        assert list(ours) == list(model)
        assert len(ours) == len(model)
    assert values(ours) == model
    assert all(values(view) == known for view, known in past)


@pytest.mark.parametrize("limit", [0, 10**6])
def test_tensors_come_back_bit_for_bit(limit):
    state = {
        "half": torch.randn(3, 2).to(torch.float16),
        "bits": torch.tensor([-0.0, float("nan"), 1e-45]),
        "count": torch.tensor(2**40),
        "turned": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
    }
    state["twin"] = state["bits"]  # shares its memory
    memories = MemoryStore(limit).view({7: state, 8: {}})
    found = memories[7]
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        raw = [t.contiguous().view(-1).view(torch.uint8) for t in (found[name], tensor)]
        assert torch.equal(raw[0], raw[1])
        assert found[name].is_contiguous()  # the same strides with and without a disk
    assert memories[8] == {}


def test_those_used_last_stay_in_ram():
    store = MemoryStore(2 * BYTES)
    memories = store.view({client: holding(client) for client in range(2)})
    assert store.bytes_held == 2 * BYTES
    assert files(store) == []
    assert float(memories[0]["net/weight"]) == 0  # so client 1 is the one not used for longest
    memories[2] = holding(2)
    assert [memories.kept[client].state is None for client in range(3)] == [False, True, False]
    assert [path.name[:5] for path in files(store)] == ["00001"]


def test_a_memory_is_written_once_and_goes_when_nothing_refers_to_it():
    store = MemoryStore(0)
    memories = store.view({0: holding(1)})
    (first,) = files(store)
    written = first.stat().st_mtime_ns
    earlier = store.view(memories)
    for _ in range(3):
        assert values(memories) == {0: 1.0}
    memories[0] = holding(2)
    assert first.stat().st_mtime_ns == written
    assert len(files(store)) == 2
    assert values(earlier) == {0: 1.0}
    del earlier
    gc.collect()
    assert len(files(store)) == 1
    assert not first.exists()
    assert values(memories) == {0: 2.0}


def test_what_is_replaced_leaves_the_ram_too():
    store = MemoryStore()
    memories = store.view({})
    for value in range(100):
        memories[0] = holding(value)
    gc.collect()
    assert store.bytes_held == BYTES


def test_the_temporary_folder_goes_with_the_store():
    memories = MemoryStore(0).view({0: holding(1)})
    folder = memories.store.folder
    assert folder.is_dir()
    del memories
    gc.collect()
    assert not folder.exists()


def test_no_folder_is_made_while_all_fits():
    memories = MemoryStore().view({0: holding(1)})
    assert "folder" not in vars(memories.store)


def test_memories_of_another_store_and_of_a_dict_are_taken_over():
    one, other = MemoryStore(0), MemoryStore(0)
    memories = other.view(one.view({3: holding(3)}))
    assert values(memories) == {3: 3.0}
    assert len(files(one)) == 0  # nothing refers to the first copy any more
    assert len(files(other)) == 1


def test_a_lost_file_is_named_with_its_remedy():
    memories = MemoryStore(0).view({0: holding(1)})
    (path,) = files(memories.store)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{path.name} cannot be read .* start the run anew"):
        memories[0]


def test_a_forked_process_leaves_the_files_alone(monkeypatch):
    memories = MemoryStore(0).view({0: holding(1)})
    folder = memories.store.folder
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        del memories
        gc.collect()
    assert len(list(folder.iterdir())) == 1
    shutil.rmtree(folder)
