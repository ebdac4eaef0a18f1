import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Examples
from dapperfl.data.partition.validation import set_aside
from tests.data.partition.toy import benchmark, numbers, same, split


def examples(labels: list[int]) -> Examples:
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 1, 1)
    return Examples(pixels, torch.tensor(labels, dtype=torch.int64))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    share=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=200, deadline=None)
def test_a_share_of_every_class_is_set_aside_and_some_of_each_stays(
    labels: list[int], share: float, seed: int
) -> None:
    kept, aside = set_aside(examples(labels), share, generator(seed))
    here, there = kept.images[:, 0, 0, 0].tolist(), aside.images[:, 0, 0, 0].tolist()
    assert sorted(here + there) == list(range(len(labels)))
    assert here == sorted(here)
    assert there == sorted(there)
    assert [labels[place] for place in here] == kept.labels.tolist()
    assert set(kept.labels.tolist()) == set(labels)
    assert len(kept) >= min(2, len(labels))
    for label in set(labels):
        assert aside.labels.tolist().count(label) < labels.count(label) * share + 1
    assert len(aside) <= round(share * len(labels))


def test_the_share_is_met_as_nearly_as_whole_pictures_allow() -> None:
    kept, aside = set_aside(examples([0] * 50 + [1] * 25 + [2] * 5), 0.2, generator(0))
    assert aside.labels.bincount().tolist() == [10, 5, 1]
    assert len(kept) == 64
    _, aside = set_aside(examples([0] * 9 + [1] * 9 + [2] * 7), 0.25, generator(0))
    assert aside.labels.bincount().tolist() == [2, 2, 2]


def test_devices_keep_a_share_aside_and_train_on_the_rest() -> None:
    data = benchmark(900, 900)
    whole, made = split(data), split(data, validation=0.2)
    assert whole.validation == {}
    assert list(made.validation) == list(made.train)
    for device in made.devices:
        held = numbers(whole.train[device.id])
        kept, aside = numbers(made.train[device.id]), numbers(made.validation[device.id])
        assert sorted(kept + aside) == sorted(held)
        assert device.num_samples == len(kept) == 72
    assert [device.domain for device in made.devices] == [d.domain for d in whole.devices]


def test_another_seed_sets_other_pictures_aside() -> None:
    data = benchmark(20)
    one, other = (split(data, devices=1, fraction=1.0, validation=0.3, seed=s) for s in (0, 1))
    assert not same(one, other)
    assert set(numbers(one.validation[0])) != set(numbers(other.validation[0]))


def test_a_device_that_can_spare_nothing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = split(benchmark(20), devices=2, validation=0.2)
    assert [len(aside) for aside in made.validation.values()] == [0, 0]
    assert "data.validation = 0.2 leaves nothing aside on devices" in caplog.text
    assert caplog.text.strip().endswith(": 0, 1; so no accuracy kept aside is of a")


def test_a_large_fleet_does_not_fill_the_screen(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        split(benchmark(60), devices=30, validation=0.2, fraction=2 / 60)
    assert "pictures: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more" in caplog.messages[-1]


def test_a_device_with_a_single_picture_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = split(benchmark(20), devices=2, fraction=0.05)
    assert [len(examples) for examples in made.train.values()] == [1, 1]
    assert "may need two: devices 0, 1; give them more" in caplog.text
