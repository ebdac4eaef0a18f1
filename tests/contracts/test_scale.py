"""What a round touches depends on those who take part, not on those who do not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.contracts.worlds import TRAIN
from tests.tiny import tiny_federation, tiny_net

from dapperfl import methods
from dapperfl.core.state import State
from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Federation
from dapperfl.runtime.checkpoint import Snapshot, load_checkpoint, open_memory, save_checkpoint
from dapperfl.runtime.memory import MemoryStore
from dapperfl.sim.simulator import RoundRecord, Simulator

COHORT = 5
ROUNDS = 6


@cache
def fleet(devices: int) -> Federation:
    made = tiny_federation((0.0,) * devices, samples=4)
    same = {device: replace(made.train[0]) for device in range(devices)}
    return replace(made, train=same)


def large_world(name: str, devices: int, **settings: int) -> Simulator:
    return Simulator(
        method=methods.load(name)(),
        net=tiny_net(),
        federation=fleet(devices),
        train=replace(TRAIN, epochs=1),
        rounds=ROUNDS,
        participation=COHORT / devices,
        **settings,  # type: ignore[arg-type]
    )


@dataclass
class Touched:
    """What one round touched."""

    prepared: int  # devices whose data was made ready
    ready: int  # devices whose data is held after the round
    read: int  # memories that came from the disk
    held: int  # bytes of memories in RAM
    files: int  # of memories, written by the checkpoint
    written: int  # bytes, all files of the checkpoint together


def sizes(folder: Path) -> dict[tuple[Path, int], int]:
    """Return the bytes of every file by its path and its inode, so that a new one shows."""
    stats = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {(path, stat.st_ino): stat.st_size for path, stat in stats.items()}


@pytest.fixture
def touched(monkeypatch, tmp_path) -> Callable[[str, int, int], list[Touched]]:
    """Return a function that runs rounds with checkpoints and counts what each one touches."""
    counts = {"prepared": 0, "read": 0}
    real_load = MemoryStore._load

    def batches(*args, **settings):
        counts["prepared"] += 1
        return Batches(*args, **settings)

    def load(store, memory):
        counts["read"] += 1
        return real_load(store, memory)

    monkeypatch.setattr("dapperfl.sim.simulator.Batches", batches)
    monkeypatch.setattr(MemoryStore, "_load", load)

    def rounds(name: str, devices: int, limit: int) -> Iterator[Touched]:
        folder = tmp_path / f"{name}-{devices}-{limit}"
        world = large_world(name, devices)
        world.memory = open_memory(folder, limit=limit)
        counts.update(prepared=0)
        for record in world.rounds():
            before = sizes(folder)
            save_checkpoint(folder, record.snapshot)
            after = sizes(folder)
            written = [size - before.get(file, 0) for file, size in after.items()]
            new = [path for path, _ in after.keys() - before.keys() if path.parent.name == "memory"]
            yield Touched(
                counts["prepared"],
                len(world.data.held),
                counts["read"],
                world.memory.bytes_held,
                sum(path.suffix == ".safetensors" for path in new),
                sum(size for size in written if size > 0),
            )
            counts.update(prepared=0, read=0)

    return lambda name, devices, limit: list(rounds(name, devices, limit))


@pytest.mark.parametrize("name", ["fedavg", "moon", "fedsr", "scaffold"])
def test_a_round_of_a_large_fleet_touches_no_more_than_one_of_a_small_fleet(touched, name):
    small, large = (touched(name, devices, 10**9) for devices in (20, 2000))
    for one in large:
        assert one.prepared == COHORT  # nobody takes part twice within six rounds
        assert one.ready <= 2 * COHORT
        assert one.read == 0
        assert one.files == (0 if name == "fedavg" else COHORT)
    for few, many in zip(small, large, strict=True):
        assert few.prepared <= COHORT
        assert many.written == pytest.approx(few.written, rel=0.01)
    last, second = large[-1].written, large[1].written
    assert last == pytest.approx(second, rel=0.01)  # nor does it grow with the rounds


@pytest.mark.parametrize("name", ["moon", "fedsr", "scaffold"])
def test_with_no_ram_for_memories_a_round_reads_those_of_its_cohort_and_holds_none(touched, name):
    for devices in (20, 2000):
        for one in touched(name, devices, 0):
            assert one.held == 0
            assert one.read <= COHORT


def everything(record: RoundRecord) -> State:
    kept = {f"{c}/{n}": t for c, m in record.snapshot.memories.items() for n, t in m.items()}
    return record.snapshot.server.weights | kept


def assert_equal_rounds(ours: list[RoundRecord], theirs: list[RoundRecord]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        mine, yours = everything(one), everything(other)
        assert mine.keys() == yours.keys()
        assert all(torch.equal(mine[name], yours[name]) for name in mine)
        assert (one.loss, one.accuracy, one.costs) == (other.loss, other.accuracy, other.costs)


@pytest.mark.parametrize("name", ["moon", "fedsr", "scaffold"])
def test_a_run_with_its_memories_on_disk_is_the_one_with_all_in_ram(name):
    ram = list(large_world(name, 8).rounds())
    assert_equal_rounds(list(large_world(name, 8, memory_limit=0).rounds()), ram)
    some = large_world(name, 8, memory_limit=ram_of(ram[-1]) // 3)
    assert_equal_rounds(list(some.rounds()), ram)


def ram_of(record: RoundRecord) -> int:
    store = getattr(record.snapshot.memories, "store")  # noqa: B009
    held: int = store.bytes_held
    assert held > 0
    return held


@pytest.mark.parametrize("limit", [0, 10**9])
@pytest.mark.parametrize("name", ["moon", "fedsr", "scaffold"])
@pytest.mark.slow
def test_a_run_resumed_again_and_again_is_the_uninterrupted_one(name, limit, tmp_path):
    whole = list(large_world(name, 8).rounds())
    for after in range(ROUNDS):
        world = large_world(name, 8)
        world.memory = open_memory(tmp_path, limit=limit)
        start: Snapshot | None = load_checkpoint(tmp_path, world.start())
        record = next(world.rounds(start))
        assert_equal_rounds([record], [whole[after]])
        save_checkpoint(tmp_path, record.snapshot)
        lost = world.round(record.snapshot)  # killed before its checkpoint
        assert lost.round_num == after + 2
    kept = [path for path in (tmp_path / "memory").iterdir() if path.suffix == ".safetensors"]
    assert len(kept) <= 8 + 2 * COHORT  # now, what the checkpoint before needs, the lost round
