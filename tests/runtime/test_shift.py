"""Random moves of statistics: what they change, what they leave alone, and when."""

import pytest
import torch
from tests.tiny import tiny_net
from torch import nn

from dapperfl.runtime.shift import early_layers, shift_statistics, shifted

FEATURES = torch.randn(64, 3, 5, 5, generator=torch.Generator().manual_seed(1)) * 2 + 1


def moved(amount: float, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return shift_statistics(FEATURES, amount)


def statistics(features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return features.mean((2, 3)), features.std((2, 3), correction=0)


def test_half_of_the_pictures_stay_as_they_are():
    same = (moved(1.0) == FEATURES).flatten(1).all(1)
    assert 0.3 < same.float().mean() < 0.7


def test_what_a_picture_shows_stays():
    """Of each channel only mean and deviation change: its standard scores are what they were."""

    def scores(features: torch.Tensor) -> torch.Tensor:
        mean, deviation = (each[:, :, None, None] for each in statistics(features))
        return (features - mean) / deviation

    assert torch.allclose(scores(moved(0.5)), scores(FEATURES), atol=1e-3)


def test_moves_are_as_large_as_pictures_differ():
    (mean, deviation), (before, width) = statistics(moved(1.0)), statistics(FEATURES)
    touched = (mean != before).any(1)
    for now, then in ((mean, before), (deviation, width)):
        move = (now - then)[touched].square().mean(0).sqrt()
        # About thirty pictures: a deviation is known within some fourteen per cent.
        assert torch.allclose(move, then.std(0), rtol=0.45)


def test_the_amount_scales_the_move():
    before = statistics(FEATURES)[0]
    small, large = (statistics(moved(amount))[0] - before for amount in (0.5, 1.0))
    assert torch.allclose(2 * small, large, atol=1e-4)


def test_gradients_flow_through_the_scale():
    x = FEATURES.clone().requires_grad_()
    torch.manual_seed(0)
    shift_statistics(x, 1.0).sum().backward()
    assert x.grad is not None
    scale = statistics(moved(1.0))[1] / statistics(FEATURES)[1]
    assert torch.allclose(x.grad[:, :, 0, 0], scale, atol=1e-3)


def test_the_first_third_of_the_norms_is_early():
    layers = [
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4),
    ]  # fmt: skip
    assert early_layers(nn.Sequential(*layers)) == [layers[1], layers[3]]


def test_a_net_without_norms_is_shifted_after_its_first_convolutions():
    net = tiny_net(norm=False)
    assert early_layers(net) == [net.stem]
    assert early_layers(nn.Linear(2, 2)) == []


@pytest.mark.parametrize("amount", [0.0, 1.0])
@pytest.mark.parametrize("training", [True, False])
def test_only_training_is_shifted_and_only_inside(amount, training):
    net = tiny_net().train(training)
    x = torch.rand(8, 3, 6, 6)
    with torch.no_grad():
        plain = net(x)
        with shifted(net, amount):
            inside = net(x)
        after = net(x)
    assert torch.equal(inside, plain) == (amount == 0 or not training)
    assert torch.equal(after, plain)


def test_an_error_leaves_no_hook_behind():
    net = tiny_net()
    with pytest.raises(ValueError, match="broken"), shifted(net, 1.0):
        raise ValueError("broken")
    assert not any(each._forward_hooks for each in net.modules())
