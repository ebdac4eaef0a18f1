import pytest
import torch
from tests.tiny import tiny_net
from torch import Tensor, nn

from dapperfl import calibrate
from dapperfl.core.state import snapshot
from dapperfl.errors import DataError


def pictures(count: int = 12) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 6, 6, generator=rng) * torch.tensor([3.0, 1, 2]).view(3, 1, 1) + 2


def first_norm(net: nn.Module) -> nn.BatchNorm2d:
    return next(module for module in net.modules() if isinstance(module, nn.BatchNorm2d))


def statistics(net: nn.Module) -> tuple[Tensor, Tensor]:
    state = first_norm(net).state_dict()
    return state["running_mean"], state["running_var"]


def plain() -> nn.Sequential:
    """A net whose norm sees the pictures themselves."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 3))
    for tensor, value in zip(statistics(net), (10, 4), strict=True):
        tensor.fill_(value)
    return net


@pytest.mark.parametrize(("prior", "share"), [(float("inf"), 0), (36, 0.25), (12, 0.5), (0, 1)])
def test_statistics_lie_between_those_of_the_net_and_those_of_the_pictures(prior, share):
    seen = pictures(12)
    mean, variance = statistics(calibrate(plain(), seen, prior))
    theirs = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
    assert torch.allclose(mean, 10 + share * (theirs[0] - 10), atol=1e-5)
    assert torch.allclose(variance, 4 + share * (theirs[1] - 4), atol=1e-4)


def test_several_batches_are_pooled():
    """Variances of batches are unbiased each, so the two differ by what a large batch lacks."""
    seen = pictures()
    together = statistics(calibrate(plain(), seen, 0))
    apart = statistics(calibrate(plain(), iter([seen[:4], seen[4:]]), 0))
    assert torch.allclose(together[0], apart[0], atol=1e-5)
    assert torch.allclose(together[1], apart[1], rtol=0.01)


def test_a_calibrated_net_treats_such_pictures_as_in_training():
    net, seen = tiny_net(), pictures(40)
    own = calibrate(net, seen, 0)
    with torch.no_grad():
        wanted = net.train()(seen)
        assert torch.allclose(own(seen), wanted, atol=0.05)
        assert not torch.allclose(tiny_net().eval()(seen), wanted, atol=0.05)


def test_nothing_else_changes_and_the_net_that_was_given_not_at_all():
    net = tiny_net().train()
    before = {name: tensor.clone() for name, tensor in snapshot(net).items()}
    own = calibrate(net, pictures())
    assert net.training
    assert not own.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(net).items())
    changed = {
        name for name, tensor in snapshot(own).items() if not torch.equal(tensor, before[name])
    }
    assert changed
    assert all(name.endswith(("running_mean", "running_var")) for name in changed)
    assert first_norm(own).momentum == first_norm(net).momentum


def test_a_net_without_batch_norm_is_returned_as_it_is():
    net = tiny_net(norm=False)
    own = calibrate(net, pictures())
    assert all(torch.equal(t, snapshot(net)[name]) for name, t in snapshot(own).items())


def test_a_norm_that_is_frozen_stays_so():
    class Frozen(nn.BatchNorm2d):
        def train(self, mode: bool = True) -> "Frozen":
            super().train(False)
            return self

    net = nn.Sequential(Frozen(3), nn.Flatten(), nn.Linear(108, 3))
    mean, variance = statistics(calibrate(net, pictures(), 0))
    assert torch.equal(mean, torch.zeros(3))
    assert torch.equal(variance, torch.ones(3))


@pytest.mark.parametrize("few", [[], torch.zeros(0, 3, 6, 6), torch.zeros(1, 3, 6, 6)])
def test_too_few_pictures_are_refused(few):
    with pytest.raises(DataError, match="bring"):
        calibrate(tiny_net(), few)


def test_a_batch_of_one_is_refused_where_a_norm_sees_one_value():
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 4), nn.BatchNorm1d(4))
    with pytest.raises(DataError, match="two pictures at least"):
        calibrate(net, [pictures(1), pictures(1)])


def test_pictures_that_are_none_are_named():
    seen = pictures()
    with pytest.raises(DataError, match="not finite"):
        calibrate(plain(), seen.where(seen < 3, float("nan")))
    with pytest.raises(DataError, match=r"float32 \(12, 2, 6, 6\): .* bring"):
        calibrate(tiny_net(), seen[:, :2])
    with pytest.raises(DataError, match=r"uint8 \(12, 3, 6, 6\): .* bytes for a net of pictures="):
        calibrate(tiny_net(), seen.to(torch.uint8))


def test_an_array_of_numpy_is_one_batch():
    seen = pictures()
    array = statistics(calibrate(plain(), seen.numpy()))
    tensor = statistics(calibrate(plain(), seen))
    assert all(map(torch.equal, array, tensor))


@pytest.mark.parametrize("prior", [-0.1, float("nan")])
def test_a_prior_is_not_negative(prior):
    with pytest.raises(ValueError, match="prior must be at least 0"):
        calibrate(tiny_net(), pictures(), prior)
