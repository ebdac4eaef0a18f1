import pytest

from dapperfl.data.partition import PROTOCOLS
from tests.data.partition.toy import benchmark, numbers, same, split


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_no_device_holds_what_is_put_by(protocol: str) -> None:
    made = split(benchmark(900, 900), protocol=protocol, reserve=90)
    held = {number for part in made.train.values() for number in numbers(part)}
    assert [len(examples) for examples in made.reserve.values()] == [90, 90]
    for name, first in (("a", 0), ("b", 900)):
        put_by = numbers(made.reserve[name])
        assert set(put_by) <= set(range(first, first + 900))
        assert held.isdisjoint(put_by)
        assert made.reserve[name].labels.bincount().tolist() == [9] * 10


def test_of_a_small_domain_a_quarter_is_taken() -> None:
    made = split(benchmark(900, 80), reserve=90)
    assert {name: len(examples) for name, examples in made.reserve.items()} == {"a": 90, "b": 20}


def test_devices_hold_as_much_as_without() -> None:
    data = benchmark(900, 900)
    whole, made = split(data), split(data, reserve=200)
    assert whole.reserve == {}
    assert made.devices == whole.devices
    assert not same(whole, made)


def test_it_depends_on_the_seed() -> None:
    data = benchmark(400)
    one, again, other = (split(data, reserve=40, seed=seed) for seed in (0, 0, 1))
    assert numbers(one.reserve["a"]) == numbers(again.reserve["a"])
    assert numbers(one.reserve["a"]) != numbers(other.reserve["a"])


def test_a_domain_that_is_held_out_has_no_reserve() -> None:
    made = split(benchmark(400, 400), reserve=40, held_out="b")
    assert list(made.reserve) == ["a"]


def test_a_domain_with_too_few_pictures_is_named(caplog: pytest.LogCaptureFixture) -> None:
    made = split(benchmark(400, 8), reserve=40, fraction=0.2, devices=2)
    assert [len(examples) for examples in made.reserve.values()] == [40, 0]
    assert "data.reserve = 40 leaves nothing aside of domains with too few pictures: b" in (
        caplog.text
    )
