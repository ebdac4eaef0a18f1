"""Data is made ready for those who take part, and only held while they are recent."""

from dataclasses import replace

import pytest
from tests.tiny import tiny_examples, tiny_federation

from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples
from dapperfl.errors import ConfigError
from dapperfl.sim.holdings import Holdings, blinded, kept_aside


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


def test_what_nobody_trains_on_is_put_together_by_domain():
    world = tiny_federation((0.0, 0.0, 0.0))
    homes = [device.domain for device in world.devices]
    aside = {device.id: tiny_examples(3 + device.id, homes[device.id]) for device in world.devices}
    reserve = {homes[0]: tiny_examples(7, homes[0], 9), "none left": tiny_examples(0, "none left")}
    found = kept_aside(replace(world, validation=aside, reserve=reserve))
    sizes = dict.fromkeys(homes, 0)
    for device in world.devices:
        sizes[device.domain] += 3 + device.id
    sizes[homes[0]] += 7
    assert {name: len(examples) for name, examples in found.items()} == sizes
    assert found[homes[0]].images[:7].equal(reserve[homes[0]].images)


def test_a_blinded_federation_has_no_trace_of_its_test_sets():
    world = replace(tiny_federation(), reserve={"light": tiny_examples(7)})
    blind = blinded(world)
    assert {name: len(examples) for name, examples in blind.test.items()} == {"light": 7}
    assert (blind.validation, blind.reserve) == ({}, {})
    assert blind.train is world.train
    with pytest.raises(ConfigError, match="no device keeps anything aside"):
        blinded(tiny_federation())
