"""Data is made ready for those who take part, and only held while they are recent."""

import pytest
from tests.tiny import tiny_examples, tiny_federation

from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples
from dapperfl.sim.holdings import Holdings


@pytest.fixture
def prepared() -> list[int]:
    return []


@pytest.fixture
def holdings(prepared: list[int]) -> Holdings:
    examples = {device: tiny_examples(10 + device, "train", device) for device in range(5)}

    def prepare(found: Examples) -> Batches:
        prepared.append(len(found) - 10)
        return Batches(found)

    return Holdings(examples, prepare, most=2)


def test_it_looks_like_a_mapping_of_the_whole_fleet(holdings, prepared):
    assert list(holdings) == [0, 1, 2, 3, 4]
    assert len(holdings) == 5
    assert 4 in holdings
    assert 5 not in holdings
    assert prepared == []
    assert [batches.num_samples for batches in holdings.values()] == [10, 11, 12, 13, 14]
    with pytest.raises(KeyError):
        holdings[5]


def test_those_asked_for_last_are_held(holdings, prepared):
    first = holdings[0]
    assert holdings[1] is holdings[1]
    assert holdings[0] is first
    assert prepared == [0, 1]
    assert holdings[2].num_samples == 12  # device 1 has to go
    assert holdings[0] is first
    assert list(holdings.held) == [2, 0]
    assert holdings[1].num_samples == 11
    assert prepared == [0, 1, 2, 1]


def test_a_fleet_that_always_takes_part_stays_ready():
    from tests.sim.test_simulator import simulator

    world = simulator(federation=tiny_federation((0.0,) * 6), rounds=2)
    first = {device: world.data[device] for device in world.data}
    list(world.rounds())
    assert all(world.data[device] is batches for device, batches in first.items())
