import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapperfl.data.partition.dirichlet import proportions, take
from dapperfl.errors import ConfigError
from tests.data.partition.toy import benchmark, split


def biggest_share(alpha: float) -> float:
    """Return the mean over devices of the share of their most frequent label."""
    data = benchmark(2000, 2000)
    made = split(data, protocol="dirichlet", alpha=alpha, fraction=0.1)
    counts = [examples.labels.bincount().tolist() for examples in made.train.values()]
    return float(np.mean([max(each) / sum(each) for each in counts]))


def test_the_smaller_alpha_the_fewer_labels_a_device_has() -> None:
    one, mixed, even = (biggest_share(alpha) for alpha in (0.01, 0.5, 1e6))
    assert one > 0.9 > mixed > 0.2
    assert even == pytest.approx(0.1, abs=0.006)  # of 200, 21 at the most


def test_alpha_has_a_default() -> None:
    data = benchmark(200)
    plain, half = (split(data, protocol="dirichlet", alpha=alpha) for alpha in (None, 0.5))
    assert [e.labels.tolist() for e in plain.train.values()] == [
        e.labels.tolist() for e in half.train.values()
    ]


@given(alpha=st.floats(1e-6, 1e6), num=st.integers(1, 30), seed=st.integers(0, 2**62))
@settings(max_examples=100, deadline=None)
def test_proportions_are_proportions_whatever_alpha(alpha: float, num: int, seed: int) -> None:
    shares = proportions(alpha, num, seed)
    assert shares.shape == (num,)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1)


def test_proportions_have_the_moments_of_the_dirichlet_distribution() -> None:
    alpha, num = 0.7, 4
    drawn = np.stack([proportions(alpha, num, seed) for seed in range(4000)])
    variance = (1 / num) * (1 - 1 / num) / (num * alpha + 1)
    error = 5 * np.sqrt(variance / len(drawn))
    assert np.abs(drawn.mean(0) - 1 / num).max() < error
    assert drawn.var(0) == pytest.approx(np.full(num, variance), rel=0.1)


@given(
    stock=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    part=st.floats(0, 1),
    alpha=st.sampled_from([0.01, 0.5, 100.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_what_is_taken_is_there_and_is_as_much_as_was_asked(
    stock: list[int], part: float, alpha: float, seed: int
) -> None:
    size = int(part * sum(stock))
    shares = proportions(alpha, len(stock), seed)
    counts = take(size, shares, np.array(stock))
    assert sum(counts) == size
    assert all(0 <= count <= there for count, there in zip(counts, stock, strict=True))


def test_with_enough_in_stock_counts_are_the_shares_rounded() -> None:
    assert take(10, np.array([0.5, 0.26, 0.24]), np.array([99, 99, 99])) == [5, 3, 2]
    assert take(10, np.array([0.5, 0.3, 0.2]), np.array([99, 0, 99])) == [7, 0, 3]
    assert take(5, np.array([1.0, 0.0, 0.0]), np.array([3, 1, 9])) == [3, 0, 2]


def test_every_device_has_two_pictures_at_least() -> None:
    with pytest.raises(ConfigError, match="1 of at least 2 pictures; raise it"):
        split(benchmark(40), protocol="dirichlet", fraction=0.03)
    with pytest.raises(ConfigError, match="some would have fewer than 2"):
        split(benchmark(12), protocol="dirichlet", fraction=0.5)
    made = split(benchmark(20), protocol="dirichlet", fraction=0.5)
    assert [device.num_samples for device in made.devices] == [2] * 10
