import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapperfl.data.benchmark import Benchmark, Domain, Examples, Federation
from dapperfl.data.partition import PROTOCOLS, partition
from dapperfl.errors import ConfigError

RHOS = (0.0, 0.2, 0.4, 0.6, 0.8)


def benchmark(*sizes: int, flip: bool = False, official: int | None = None) -> Benchmark:
    """Make domains a, b, c… whose pictures carry their own number, so that none can hide."""
    domains, first = {}, 0
    for name, size in zip("abcdefgh", sizes, strict=False):
        numbers = torch.arange(first, first + size)
        pixels = torch.stack([numbers // 256, numbers % 256], dim=1).to(torch.uint8)
        train = Examples(pixels.view(-1, 2, 1, 1), numbers % 10)
        test = Examples(torch.zeros(3, 2, 1, 1, dtype=torch.uint8), torch.arange(3))
        domains[name] = Domain(train, test, size if official is None else official)
        first += size
    classes = tuple("0123456789")
    return Benchmark("toy", domains, classes, (0.5, 0.5), (0.2, 0.3), fraction=0.1, flip=flip)


def split(data: Benchmark, **changes: Any) -> Federation:
    asked: dict[str, Any] = {"devices": 10, "rhos": RHOS, "protocol": "paper", "seed": 0}
    return partition(data, **(asked | changes))


def numbers(examples: Examples) -> list[int]:
    high, low = examples.images.long().flatten(1).unbind(1)
    return (high * 256 + low).tolist()


def same(one: Federation, other: Federation) -> bool:
    held = all(numbers(one.train[i]) == numbers(other.train[i]) for i in one.train)
    return one.devices == other.devices and held


federations = {
    "sizes": st.lists(st.integers(30, 90), min_size=1, max_size=4),
    "extra": st.integers(0, 8),
    "fraction": st.floats(0.05, 1.0),
    "protocol": st.sampled_from(sorted(PROTOCOLS)),
    "seed": st.integers(0, 2**31),
}


@given(**federations)
@settings(max_examples=80, deadline=None)
def test_no_picture_is_held_twice_and_every_device_holds_some(
    sizes: list[int], extra: int, fraction: float, protocol: str, seed: int
) -> None:
    data = benchmark(*sizes)
    devices = len(sizes) + extra
    made = split(data, devices=devices, fraction=fraction, protocol=protocol, seed=seed)
    held = [number for examples in made.train.values() for number in numbers(examples)]
    assert len(held) == len(set(held))
    assert [device.id for device in made.devices] == list(range(devices)) == list(made.train)
    for device in made.devices:
        assert device.num_samples == len(made.train[device.id]) >= 1
        assert all(number % 10 == y for number, y in _labelled(made.train[device.id]))
    assert set(made.test) == set(data.domains)


def _labelled(examples: Examples) -> list[tuple[int, int]]:
    return list(zip(numbers(examples), examples.labels.tolist(), strict=True))


@given(**(federations | {"protocol": st.sampled_from(["paper", "fair"])}))
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


@given(**federations)
@settings(max_examples=30, deadline=None)
def test_the_seed_alone_decides_a_partition(
    sizes: list[int], extra: int, fraction: float, protocol: str, seed: int
) -> None:
    data = benchmark(*sizes)
    asked = {"devices": len(sizes) + extra, "fraction": fraction, "protocol": protocol}
    assert same(split(data, seed=seed, **asked), split(data, seed=seed, **asked))


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_another_seed_gives_other_pictures(protocol: str) -> None:
    data = benchmark(90, 90)
    one, other = (split(data, protocol=protocol, seed=seed) for seed in (0, 1))
    assert not same(one, other)


def test_paper_levels_go_by_device_index() -> None:
    made = split(benchmark(90, 90, 90, 90), devices=12)
    assert [device.rho for device in made.devices] == [*RHOS, *RHOS, 0.0, 0.2]


def test_the_free_devices_of_the_paper_are_spread_over_all_domains() -> None:
    data = benchmark(60, 60, 60, 60)
    drawn = [device.domain for seed in range(60) for device in split(data, seed=seed).devices[:6]]
    counts = [drawn.count(name) for name in data.domains]
    # 360 draws, 90 expected for each domain, standard deviation 8.2: five of them either way.
    assert sum(counts) == 360
    assert all(49 <= count <= 131 for count in counts)


def test_fair_is_paper_with_its_levels_shuffled() -> None:
    data = benchmark(90, 90, 90, 90)
    orders = set()
    for seed in range(5):
        plain, shuffled = (split(data, protocol=name, seed=seed) for name in ("paper", "fair"))
        rhos = [device.rho for device in shuffled.devices]
        assert sorted(rhos) == sorted(device.rho for device in plain.devices)
        assert [d.domain for d in shuffled.devices] == [d.domain for d in plain.devices]
        assert all(numbers(shuffled.train[i]) == numbers(plain.train[i]) for i in plain.train)
        orders.add(tuple(rhos))
    assert len(orders) > 1


def test_only_the_paper_mirrors_pictures_whose_label_that_may_change() -> None:
    flips = {name: split(benchmark(90), protocol=name).flip for name in PROTOCOLS}
    assert flips == {"paper": True, "fair": False, "iid": False}
    assert split(benchmark(90, flip=True), protocol="fair").flip


def test_iid_devices_have_pictures_of_all_domains() -> None:
    data = benchmark(300, 300, 300, 300)
    made = split(data, protocol="iid", fraction=0.3)
    for device in made.devices:
        assert device.domain == "mixed"
        assert device.num_samples == 90
        assert {number // 300 for number in numbers(made.train[device.id])} == {0, 1, 2, 3}


def test_the_portion_refers_to_the_official_size() -> None:
    made = split(benchmark(90, official=250), devices=3)
    assert [device.num_samples for device in made.devices] == [25, 25, 25]


def test_the_last_devices_of_a_crowded_domain_share_what_remains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        made = split(benchmark(127), devices=7, fraction=0.2)
    assert [device.num_samples for device in made.devices] == [25, 25, 25, 25, 9, 9, 9]
    assert "domain a has 127 pictures" in caplog.text
    assert "its last 3 share 27" in caplog.text


def test_a_roomy_domain_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    split(benchmark(127), devices=5, fraction=0.2)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fraction": 0.0}, r"data\.fraction = 0\.0"),
        ({"fraction": 1.5}, r"data\.fraction = 1\.5"),
        ({"fraction": float("nan")}, r"data\.fraction = nan"),
        ({"fraction": 0.001}, "domain a no picture.*raise it"),
        ({"rhos": (0.0, 1.0)}, r"fleet\.rhos holds 1\.0"),
        ({"rhos": (-0.1,)}, r"fleet\.rhos holds -0\.1"),
        ({"rhos": ()}, r"fleet\.rhos is empty"),
        ({"devices": 0}, r"fleet\.devices = 0"),
        ({"devices": 1}, r"fleet\.devices = 1, but toy has 2 domains.*at least 2 devices"),
        ({"devices": 1, "protocol": "fair"}, "has 2 domains"),
        ({"protocol": "papr"}, '"papr"; did you mean "paper"'),
        ({"protocol": "zzz"}, "there are fair, iid, paper"),
        ({"devices": 200}, "some would have none.*fewer fleet.devices"),
    ],
)
def test_a_bad_value_is_named_with_its_remedy(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        split(benchmark(20, 20), **changes)


def test_one_device_is_enough_for_iid() -> None:
    assert len(split(benchmark(20, 20), devices=1, protocol="iid").devices) == 1


def test_ten_devices_share_minidigits_sensibly(minidigits: Benchmark) -> None:
    made = split(minidigits, protocol="fair")
    assert {device.domain for device in made.devices} == set(minidigits.domains)
    assert max(device.num_samples for device in made.devices) == 250
    assert min(device.num_samples for device in made.devices) >= 60
