"""Weights cast together are the weights that autocast would cast one by one."""

import pytest
import torch
from tests.sim.test_graphs import VARIANTS, assert_alike, rounds
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune, weight_norm
from torch.utils._python_dispatch import TorchDispatchMode

from dapperfl import methods
from dapperfl.core import flat
from dapperfl.runtime.optimiser import TrainSettings, sgd
from dapperfl.sim.casts import Casts
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.packed import Packed


@pytest.mark.parametrize(("name", "preset"), VARIANTS, ids=[f"{n}:{p}" for n, p in VARIANTS])
def test_no_method_sees_a_difference(name, preset, monkeypatch):
    method = methods.load(name).from_preset(preset)
    monkeypatch.setattr(flat, "KINDS", frozenset({"cpu"}))
    ours = rounds(method, GraphRunner, precision="bf16")
    monkeypatch.setattr("dapperfl.sim.slot.Casts", lambda module, state: None)
    assert_alike(ours, rounds(method, GraphRunner, precision="bf16"), 0.0)


class Plain(nn.Module):
    """Two convolutions and two linear layers, as most nets have them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.third = nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, 4)

    def features(self, x):
        return self.second(self.first(x).relu()).relu().mean((2, 3))

    def forward(self, x):
        return self.last(self.third(self.features(x)).relu())


class Shares(Plain):
    """Two layers, one weight."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 8, bias=False)
        self.other.weight = self.third.weight

    def forward(self, x):
        return self.last(self.other(self.third(self.features(x)).relu()).relu())


class UsesTwice(Plain):
    """One layer, two calls."""

    def forward(self, x):
        return self.last(self.third(self.third(self.features(x)).relu()).relu())


class ReadsItself(Plain):
    """A weight that is also read without its layer."""

    def forward(self, x):
        decay = self.second.weight.square().sum()
        return super().forward(x) * (1 + decay)


class StepsOut(Plain):
    """A part that must not be cast."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            kept = self.third(self.features(x))
        return self.last(kept.relu())


class Frozen(Plain):
    """A layer that does not train."""

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)


class Watched(Plain):
    """A layer whose gradient somebody changes on its way."""

    def __init__(self):
        super().__init__()
        self.second.weight.register_hook(lambda gradient: gradient * 1.01)


class Normed(Plain):
    """A weight made anew in each step, as torch used to do it."""

    def __init__(self):
        super().__init__()
        with pytest.warns(FutureWarning, match="weight_norm"):
            self.second, self.third = weight_norm(self.second), weight_norm(self.third)


class Pruned(Plain):
    """Parts of a weight and of a bias held at zero."""

    def __init__(self):
        super().__init__()
        prune.l1_unstructured(self.second, "weight", amount=0.5)
        prune.l1_unstructured(self.first, "bias", amount=0.5)


class NamesInputs(Plain):
    """Hands its tensors over by name."""

    def forward(self, x):
        z = self.second(input=self.first(input=x).relu()).relu().mean((2, 3))
        return self.last(input=self.third(input=z).relu())


class OtherType(Plain):
    """A part in a number format of its own."""

    def forward(self, x):
        with torch.autocast("cpu", torch.float16):
            kept = self.third(self.features(x))
        return self.last(kept.relu())


class Skips(Plain):
    """A layer without a gradient in this step."""

    def forward(self, x):
        return self.last(self.features(x))


NETS = (
    *(Plain, Shares, UsesTwice, ReadsItself, StepsOut, Frozen, Watched, Skips),
    *(Normed, Pruned, NamesInputs, OtherType),
)


def trained(kind, *, together: bool, steps: int = 3):
    torch.manual_seed(0)
    net = kind().train()
    alone: dict[str, torch.Tensor] = {}
    for name, tensor in net.state_dict(keep_vars=True).items():
        if not any(tensor is each for each in alone.values()):
            alone[name] = tensor
    state = Packed(alone, channels_last=True, flat=True)
    casts = Casts(net, state) if together else None
    optimiser = sgd(net, {}, TrainSettings(lr=0.1), fused=False)
    x, y = torch.randn(steps, 6, 3, 8, 8), torch.randint(4, (steps, 6))
    for pictures, labels in zip(x, y, strict=True):
        optimiser.zero_grad(set_to_none=True)
        if casts:
            with casts.in_use():
                backward(net, pictures, labels)
        else:
            backward(net, pictures, labels)
        optimiser.step()
    return net, casts


def backward(net, pictures, labels):
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        cross_entropy(net(pictures), labels).backward()


@pytest.mark.parametrize("kind", NETS)
def test_no_net_sees_a_difference(kind):
    ours, casts = trained(kind, together=True)
    theirs, _ = trained(kind, together=False)
    assert casts.casts
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name]), name


def test_a_step_moves_the_weights():
    torch.manual_seed(0)
    before = Plain()
    after, _ = trained(Plain, together=True)
    for name, tensor in after.state_dict().items():
        assert not torch.equal(tensor, before.state_dict()[name]), name


class CountsCasts(TorchDispatchMode):
    """Counts what is made bfloat16, and what is made of it again, tensor by tensor."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_a_step_casts_pictures_and_nothing_else_by_itself():
    net, casts = trained(Plain, together=True)
    x, y = torch.randn(6, 3, 8, 8), torch.randint(4, (6,))
    with CountsCasts() as apart:
        backward(net, x, y)
    with CountsCasts() as together, casts.in_use():
        backward(net, x, y)
    weights = len(list(net.parameters()))
    assert apart.count - together.count == 2 * weights


def test_other_weights_in_a_layers_place_are_those_that_count():
    net, casts = trained(Plain, together=True)
    others = {name: torch.zeros_like(t) for name, t in net.state_dict().items()}
    x = torch.randn(6, 3, 8, 8)
    with casts.in_use(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        found = torch.func.functional_call(net, others, (x,))
    assert not found.any()


def test_a_step_that_fails_leaves_nothing_behind():
    net, casts = trained(Plain, together=True)
    with pytest.raises(IndexError), casts.in_use():
        backward(net, torch.randn(6, 3, 8, 8), torch.full((6,), 99))
    assert not any("forward" in vars(part) for part in net.modules())
    net.zero_grad()
    with casts.in_use():
        pass
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_net_without_such_layers_is_left_alone():
    net = nn.Sequential(nn.Flatten(), nn.LayerNorm(4))
    casts = Casts(net, Packed(net.state_dict(keep_vars=True), channels_last=False, flat=True))
    with casts.in_use():
        net(torch.randn(2, 4)).sum().backward()
    assert net[1].weight.grad is not None
