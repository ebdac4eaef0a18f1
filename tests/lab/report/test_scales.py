"""Positions and round numbers at an axis."""

from hypothesis import given
from hypothesis import strategies as st

from dapperfl.lab.report.scales import Scale, around


def test_a_scale_is_linear_and_may_go_upwards():
    scale = Scale(10, 30, 200, 100)
    assert [scale(10), scale(20), scale(30)] == [200, 150, 100]


def test_ticks_are_round_and_inside():
    assert Scale(0, 100, 0, 1).ticks() == [0, 20, 40, 60, 80, 100]
    assert Scale(13, 41, 0, 1).ticks() == [15, 20, 25, 30, 35, 40]
    assert Scale(0, 0.5, 0, 1).ticks() == [0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_rounds_have_no_ticks_between_them():
    assert Scale(1, 3, 0, 1).ticks(least_step=1) == [1, 2, 3]


@given(st.lists(st.floats(0, 100), min_size=1))
def test_limits_hold_all_values_and_stay_possible(values):
    low, high = around(values, floor=0, ceiling=100)
    assert 0 <= low <= min(values)
    assert max(values) <= high <= 100
    assert low < high


@given(st.floats(0, 1e12), st.floats(1e-3, 1e12))
def test_there_are_some_ticks_but_never_many(low, span):
    scale = Scale(low, low + span, 0, 1)
    if scale.high - scale.low > 1e-9 * scale.high:
        assert len(scale.ticks()) <= 7
        assert all(scale.low - 1e-6 * span <= tick for tick in scale.ticks())
