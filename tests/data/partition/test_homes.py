import pytest

from tests.data.partition.toy import benchmark, split


def test_the_free_devices_are_spread_over_all_domains() -> None:
    data = benchmark(60, 60, 60, 60)
    drawn = [device.domain for seed in range(60) for device in split(data, seed=seed).devices[:6]]
    counts = [drawn.count(name) for name in data.domains]
    # 360 draws, 90 expected for each domain, standard deviation 8.2: five of them either way.
    assert sum(counts) == 360
    assert all(49 <= count <= 131 for count in counts)


@pytest.mark.parametrize("protocol", ["paper", "fair", "dirichlet"])
def test_devices_can_be_allocated_by_hand_in_any_order(protocol: str) -> None:
    data = benchmark(60, 60, 60)
    made = split(data, protocol=protocol, devices=5, allocation={"c": 2, "a": 3})
    assert [device.domain for device in made.devices] == ["c", "c", "a", "a", "a"]
    assert set(made.test) == {"a", "b", "c"}


def test_an_allocation_of_nothing_to_a_domain_leaves_it_to_the_test() -> None:
    made = split(benchmark(60, 60), devices=4, allocation={"a": 0, "b": 4})
    assert {device.domain for device in made.devices} == {"b"}


def test_an_allocation_works_beside_a_domain_that_is_held_out() -> None:
    made = split(benchmark(60, 60, 60), devices=3, allocation={"b": 1, "a": 2}, held_out="c")
    assert [device.domain for device in made.devices] == ["b", "a", "a"]
