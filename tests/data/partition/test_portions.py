import logging

import pytest

from dapperfl.errors import ConfigError
from tests.data.partition.toy import benchmark, split


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


def test_fewer_devices_have_a_full_portion_where_the_last_would_have_nothing() -> None:
    made = split(benchmark(12), devices=10, fraction=0.5)
    assert [device.num_samples for device in made.devices] == [2, 2, *[1] * 8]


def test_a_domain_that_is_only_for_the_test_says_so() -> None:
    with pytest.raises(ConfigError, match=r"domain a has no training pictures.*data\.held_out"):
        split(benchmark(0), devices=1)
