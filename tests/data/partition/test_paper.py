"""The paper's protocol: its numbers of samples, its levels, its labels."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark
from tests.data.partition.toy import RHOS, benchmark, named_benchmark, numbers, split

DIGITS = {"mnist": 600, "usps": 72, "svhn": 732, "syn": 100}
OFFICE = {"caltech": 179, "amazon": 153, "webcam": 47, "dslr": 25}
REAL = pytest.mark.skipif(
    "DAPPERFL_TEST_DATA" not in os.environ, reason="DAPPERFL_TEST_DATA names no prepared data"
)


def digits() -> Benchmark:
    """As many pictures as the subset of the real data has, and the official sizes."""
    sizes = {"mnist": (20000, 60000), "usps": (7291, 7291), "svhn": (8000, 73257)}
    return named_benchmark(sizes | {"syn": (3000, 10000)}, fraction=0.01)


def office() -> Benchmark:
    sizes = {"caltech": 899, "amazon": 768, "webcam": 237, "dslr": 127}
    return named_benchmark(
        {name: (size, size) for name, size in sizes.items()},
        fraction=0.2,
        flip=True,
        repair_labels=True,
    )


def check_sizes(data: Benchmark, expected: dict[str, int], seed: int) -> None:
    made = split(data, seed=seed)
    assert {device.domain for device in made.devices} == set(expected)
    for device in made.devices:
        crowd = [each.id for each in made.devices if each.domain == device.domain]
        room = len(data.domains[device.domain].train) // expected[device.domain] - 1
        if crowd.index(device.id) < room or len(crowd) <= room:
            assert device.num_samples == expected[device.domain], device


@pytest.mark.parametrize("seed", range(5))
def test_a_digits_client_has_one_per_cent_of_the_official_size(seed: int) -> None:
    check_sizes(digits(), DIGITS, seed)


@pytest.mark.parametrize("seed", range(5))
def test_an_office_client_has_a_fifth_of_its_domain(seed: int) -> None:
    check_sizes(office(), OFFICE, seed)


@REAL
@pytest.mark.parametrize(("name", "expected"), [("digits", DIGITS), ("office_caltech", OFFICE)])
def test_real_clients_have_these_sizes_too(name: str, expected: dict[str, int]) -> None:
    check_sizes(benchmarks.load(name, Path(os.environ["DAPPERFL_TEST_DATA"])), expected, seed=0)


@pytest.mark.parametrize("protocol", ["paper", "fair"])
@pytest.mark.parametrize("seed", range(8))
def test_every_office_client_has_all_ten_labels(protocol: str, seed: int) -> None:
    made = split(office(), protocol=protocol, seed=seed)
    assert all(len(set(examples.labels.tolist())) == 10 for examples in made.train.values())


@REAL
@pytest.mark.parametrize("seed", range(5))
def test_every_real_office_client_has_all_ten_labels(seed: int) -> None:
    data = benchmarks.load("office_caltech", Path(os.environ["DAPPERFL_TEST_DATA"]))
    made = split(data, seed=seed)
    assert all(len(set(examples.labels.tolist())) == 10 for examples in made.train.values())


@pytest.mark.parametrize("seed", range(5))
def test_a_repair_changes_few_pictures_and_no_size(seed: int) -> None:
    mended = split(office(), seed=seed)
    plain = split(replace(office(), repair_labels=False), seed=seed)
    assert [d.domain for d in mended.devices] == [d.domain for d in plain.devices]
    for device in mended.devices:
        before, after = (set(numbers(one.train[device.id])) for one in (plain, mended))
        missed = 10 - len(set(plain.train[device.id].labels.tolist()))
        assert len(after - before) == missed
        if len(before) >= 10:
            assert len(after) == len(before)


def test_paper_levels_go_by_device_index() -> None:
    made = split(benchmark(90, 90, 90, 90), devices=12)
    assert [device.rho for device in made.devices] == [*RHOS, *RHOS, 0.0, 0.2]


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
