import pytest
import torch

from dapperfl.runtime.rounding import Rounding, halved


def test_the_loss_is_measured_by_hand():
    # beyond 2048, steps are 2 (beyond 4096, 4) wide, and a tie goes to the even side
    state = {"a": torch.tensor([2049.0, 0.5]), "n": torch.tensor([7])}
    small, rounding = halved(state)
    assert small["a"].dtype == torch.float16
    assert small["a"].tolist() == [2048.0, 0.5]
    assert small["n"] is state["n"]
    assert rounding is not None
    assert rounding.max_abs_error == 1.0
    assert rounding.relative_error == pytest.approx(1 / (2049.0**2 + 0.25) ** 0.5)


def test_errors_of_all_tensors_add_up():
    state = {"a": torch.tensor([2049.0]), "b": torch.tensor([4098.0]).double()}
    _, rounding = halved(state)  # errors 1 and 2
    assert rounding is not None
    assert rounding.max_abs_error == 2.0
    assert rounding.relative_error == pytest.approx((5 / (2049.0**2 + 4098.0**2)) ** 0.5)


@pytest.mark.parametrize("value", [70_000.0, float("nan"), float("inf")])
def test_what_sixteen_bits_cannot_hold_stays(value):
    state = {"a": torch.tensor([1.0]), "b": torch.tensor([value])}
    small, rounding = halved(state)
    assert rounding is None
    assert small is state


def test_nothing_but_zeros_loses_nothing():
    assert halved({"a": torch.zeros(2), "b": torch.zeros(0)})[1] == Rounding(0.0, 0.0)
