"""Paired differences against a calculation by hand and printed tables of Student's t."""

from math import sqrt

import pytest

from dapperfl.lab.compare.paired import difference, student_probability, student_quantile


@pytest.mark.parametrize(
    ("freedom", "printed"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042)],
)
def test_quantiles_are_those_of_printed_tables(freedom, printed):
    assert student_quantile(freedom) == pytest.approx(printed, abs=5e-4)


def test_probability_of_one_and_two_degrees_in_closed_form():
    assert student_probability(1, 1) == pytest.approx(0.5)  # Cauchy: 2 atan(1) / π
    assert student_probability(2, 2) == pytest.approx(2 / sqrt(6))  # t / √(2 + t²)


def test_differences_are_taken_seed_by_seed():
    # 1, 2 and 6 points: mean 3, deviations -2, -1, 3, variance 14 / 2
    found = difference({0: 11, 1: 22, 2: 36, 9: 1}, {0: 10, 1: 20, 2: 30})
    assert found is not None
    assert (found.mean, found.count) == (3, 3)
    assert found.half == pytest.approx(4.303 * sqrt(7 / 3), abs=1e-3)
    assert str(found) == "+3.00 [-3.57, +9.57]"


def test_one_common_seed_has_no_interval_and_none_no_difference():
    assert str(difference({0: 5.0}, {0: 7.0})) == "-2.00"
    assert difference({0: 5.0}, {1: 7.0}) is None
