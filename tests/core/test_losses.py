import pytest
import torch

from dapperfl.core.losses import feature_norm

Z = torch.tensor([[3.0, 4.0], [0.0, 2.0]])  # lengths 5 and 2


@pytest.mark.parametrize(
    ("power", "reduce", "expected"),
    [
        (2, "sum", (25 + 4) / 2),
        (1, "sum", (5 + 2) / 2),
        (2, "mean", (25 / 2 + 4 / 2) / 2),
        (1, "mean", (5 / 2**0.5 + 2 / 2**0.5) / 2),
    ],
)
def test_the_norm_is_what_the_formula_says(power, reduce, expected):
    assert feature_norm(Z, power, reduce).item() == pytest.approx(expected)


def test_the_default_is_the_paper():
    assert feature_norm(Z).item() == pytest.approx(14.5)


def test_its_gradient_at_zero_is_zero():
    for power in (1, 2):
        z = torch.zeros(2, 3, requires_grad=True)
        feature_norm(z, power).backward()
        assert z.grad is not None
        assert z.grad.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_feature_maps_are_flattened():
    assert feature_norm(torch.ones(2, 3, 4, 5)).item() == pytest.approx(60)


def test_bad_choices_are_named():
    with pytest.raises(ValueError, match="power must be 1 or 2, not 3"):
        feature_norm(Z, 3)
    with pytest.raises(ValueError, match='reduce must be "sum" or "mean", not "max"'):
        feature_norm(Z, 2, "max")  # type: ignore[arg-type]
