"""What holds for every protocol."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapperfl.data.benchmark import Benchmark, Examples
from dapperfl.data.partition import PROTOCOLS, ProtocolName
from dapperfl.errors import ConfigError
from tests.data.partition.toy import RHOS, benchmark, numbers, same, split

federations = {
    "sizes": st.lists(st.integers(50, 90), min_size=1, max_size=4),
    "extra": st.integers(0, 8),
    "fraction": st.floats(0.05, 1.0),
    "protocol": st.sampled_from(sorted(PROTOCOLS)),
    "seed": st.integers(0, 2**31),
}


def test_every_protocol_can_be_named_in_a_config() -> None:
    assert get_args(ProtocolName) == tuple(PROTOCOLS)


@given(**federations, validation=st.sampled_from([0.0, 0.3]))
@settings(max_examples=80, deadline=None)
def test_no_picture_is_held_twice_and_every_device_holds_some(
    sizes: list[int], extra: int, fraction: float, protocol: str, seed: int, validation: float
) -> None:
    data = benchmark(*sizes)
    asked = {"fraction": fraction, "protocol": protocol, "validation": validation}
    made = split(data, devices=len(sizes) + extra, seed=seed, **asked)
    parts = [*made.train.values(), *made.validation.values()]
    held = [number for examples in parts for number in numbers(examples)]
    assert len(held) == len(set(held))
    assert [device.id for device in made.devices] == list(range(len(sizes) + extra))
    assert list(made.train) == list(range(len(sizes) + extra))
    for device in made.devices:
        assert device.num_samples == len(made.train[device.id]) >= 1
    for examples in parts:
        assert all(number % 10 == y for number, y in _labelled(examples))
    assert set(made.test) == set(data.domains)


def _labelled(examples: Examples) -> list[tuple[int, int]]:
    return list(zip(numbers(examples), examples.labels.tolist(), strict=True))


@given(**(federations | {"protocol": st.sampled_from(["paper", "fair", "dirichlet"])}))
@settings(max_examples=80, deadline=None)
def test_a_device_holds_its_own_domain_and_as_much_as_it_wants_while_there_is_enough(
    sizes: list[int], extra: int, fraction: float, protocol: str, seed: int
) -> None:
    data = benchmark(*sizes)
    devices = len(sizes) + extra
    made = split(data, devices=devices, fraction=fraction, protocol=protocol, seed=seed)
    assert [device.domain for device in made.devices[extra:]] == list(data.domains)
    for name, domain in data.domains.items():
        own = set(numbers(domain.train))
        residents = [device for device in made.devices if device.domain == name]
        got = [device.num_samples for device in residents]
        wanted = int(fraction * domain.official_size)
        for device in residents:
            assert set(numbers(made.train[device.id])) <= own
        assert sum(got) == min(wanted * len(got), len(own))
        assert max(got) <= wanted
        full = len(own) // wanted
        assert got[: min(len(got), full - 1)] == [wanted] * min(len(got), full - 1)


@given(**federations, validation=st.sampled_from([0.0, 0.2]))
@settings(max_examples=30, deadline=None)
def test_the_seed_alone_decides_a_partition(
    sizes: list[int], extra: int, fraction: float, protocol: str, seed: int, validation: float
) -> None:
    data = benchmark(*sizes, repair_labels=True)
    asked: dict[str, Any] = {"devices": len(sizes) + extra, "fraction": fraction, "seed": seed}
    asked |= {"protocol": protocol, "validation": validation}
    assert same(split(data, **asked), split(data, **asked))


@given(
    rhos=st.lists(st.sampled_from(RHOS), min_size=1, max_size=6),
    protocol=federations["protocol"],
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_the_levels_have_no_say_in_who_holds_what(
    rhos: list[float], protocol: str, seed: int
) -> None:
    data = benchmark(60, 70)
    one, other = (split(data, rhos=r, protocol=protocol, seed=seed) for r in (RHOS, rhos))
    assert [d.domain for d in one.devices] == [d.domain for d in other.devices]
    assert all(numbers(one.train[i]) == numbers(other.train[i]) for i in one.train)
    assert {d.rho for d in other.devices} <= set(rhos)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_another_seed_gives_other_pictures(protocol: str) -> None:
    data = benchmark(90, 90)
    one, other = (split(data, protocol=protocol, seed=seed) for seed in (0, 1))
    assert not same(one, other)


def test_only_the_paper_mirrors_pictures_whose_label_that_may_change() -> None:
    flips = {name: split(benchmark(90), protocol=name).flip for name in PROTOCOLS}
    assert flips == {"paper": True, "fair": False, "dirichlet": False, "iid": False}
    assert split(benchmark(90, flip=True), protocol="fair").flip


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_domain_held_out_is_tested_but_on_no_device(protocol: str) -> None:
    data = benchmark(90, 90, 90)
    made = split(data, protocol=protocol, held_out="b")
    assert set(made.test) == {"a", "b", "c"}
    unseen = set(numbers(data.domains["b"].train))
    assert not any(unseen & set(numbers(examples)) for examples in made.train.values())
    homes = {device.domain for device in made.devices}
    assert homes == ({"mixed"} if protocol == "iid" else {"a", "c"})
    assert made.available == 180  # of those that anybody may have


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fraction": 0.0}, r"data\.fraction = 0\.0"),
        ({"fraction": 1.5}, r"data\.fraction = 1\.5"),
        ({"fraction": float("nan")}, r"data\.fraction = nan"),
        ({"fraction": 0.001}, "domain a no picture.*raise it: there are 20 to train"),
        ({"rhos": (0.0, 1.0)}, r"fleet\.rhos holds 1\.0"),
        ({"rhos": (-0.1,)}, r"fleet\.rhos holds -0\.1"),
        ({"rhos": ()}, r"fleet\.rhos is empty"),
        ({"devices": 0}, r"fleet\.devices = 0"),
        ({"devices": 1}, r"fleet\.devices = 1, but toy has 2 domains.*at least 2 devices"),
        ({"devices": 1, "protocol": "fair"}, "has 2 domains"),
        ({"devices": 200}, "some would have none.*fewer fleet.devices"),
        ({"protocol": "papr"}, r"data\.protocol = papr: expected one of paper, fair"),
        ({"held_out": "B"}, '"B" is no domain of toy; there are a, b'),
        ({"validation": 1.0}, r"data\.validation = 1\.0"),
        ({"protocol": "dirichlet", "alpha": 0.0}, r"data\.alpha = 0\.0"),
        ({"alpha": 0.5}, 'data.alpha is only used by protocol "dirichlet".* is "paper"'),
        ({"protocol": "iid", "allocation": {"a": 10}}, 'only used by protocols "paper", "fair"'),
        ({"allocation": {}}, "data.allocation is empty"),
        ({"allocation": {"a": -1, "b": 11}}, r"data\.allocation\.a = -1"),
        ({"allocation": {"a": 3, "b": 4}}, r"gives 7 devices, but fleet\.devices = 10"),
        ({"allocation": {"a": 3, "bb": 7}}, 'unknown domain "bb"; did you mean "b"'),
        ({"allocation": {"b": 10}, "held_out": "b"}, 'data.held_out says.*"b"|"b".*data.held_out'),
    ],
)
def test_a_bad_value_is_named_with_its_remedy(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        split(benchmark(20, 20), **changes)


def test_the_only_domain_cannot_be_held_out() -> None:
    with pytest.raises(ConfigError, match="the only domain of toy"):
        split(benchmark(20), held_out="a")


def test_one_device_is_enough_for_iid() -> None:
    assert len(split(benchmark(20, 20), devices=1, protocol="iid").devices) == 1


def test_iid_devices_have_pictures_of_all_domains() -> None:
    data = benchmark(300, 300, 300, 300)
    made = split(data, protocol="iid", fraction=0.3)
    for device in made.devices:
        assert device.domain == "mixed"
        assert device.num_samples == 90
        assert {number // 300 for number in numbers(made.train[device.id])} == {0, 1, 2, 3}


def test_ten_devices_share_minidigits_sensibly(minidigits: Benchmark) -> None:
    made = split(minidigits, protocol="fair")
    assert {device.domain for device in made.devices} == set(minidigits.domains)
    assert max(device.num_samples for device in made.devices) == 250
    assert min(device.num_samples for device in made.devices) >= 60
