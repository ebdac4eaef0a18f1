"""Nets that are not ours: they train with any method, or the run says why not before it starts."""

from typing import Any

import pytest
import torch
from tests.contracts.worlds import TRAIN, federation
from tests.core.made import Made
from tests.core.zoo import conv_bn
from tests.core.zoo_pinned import PINNED_NETS, Prototypes, WeightNorm
from torch import nn

from dapperfl import methods
from dapperfl.errors import BudgetError, ConfigError, TraceError
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.sim.simulator import Simulator

GAMMA_FREE = {"dapperfl": {"gamma": 0.0}}  # for nets without a linear head


def simulator(method: Method, net: nn.Module, *rhos: float) -> Simulator:
    """Return a small world of 8×8 pictures for a net, two rounds ahead of it."""
    return Simulator(method=method, net=net, federation=federation(rhos), train=TRAIN, rounds=2)


def seeded(build: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net: nn.Module = build()
    return net


def pooled() -> nn.Module:
    """A net in SqueezeNet's manner: its logits are the channels of a convolution, pooled."""
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(conv_bn(3, 8), conv_bn(8, 8), nn.Conv2d(8, 5, 1), pool, nn.Flatten())


def recurrent() -> nn.Module:
    class Rows(nn.Module):
        """Nothing in it can be cut."""

        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(24, 5, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.rnn(x.permute(0, 2, 1, 3).flatten(2))[0]
            return states[:, -1]

    return Rows()


@pytest.mark.parametrize("name", ["dapperfl", "heterofl", "fedavg"])
@pytest.mark.parametrize("cls", PINNED_NETS)
@pytest.mark.slow
def test_nets_with_calls_that_have_no_rule_train_and_shrink(cls, name):
    settings = GAMMA_FREE.get(name, {}) if cls is Prototypes else {}
    method = methods.load(name).from_preset("default", **settings)
    world = simulator(method, seeded(cls), 0.0, 0.1)
    sizes = [level.parameters for level in world.levels()]
    assert (sizes[1] < sizes[0]) is (name != "fedavg")
    records = list(world.rounds())
    assert len(records) == 2
    assert not any(record.left_out for record in records)


@pytest.mark.parametrize("name", methods.names())
def test_a_method_trains_a_net_without_a_linear_head_or_refuses_it_at_once(name):
    method = methods.load(name)()
    if method.needs_representation:
        with pytest.raises(ConfigError, match=r"needs the representation .* nn\.Linear"):
            simulator(method, seeded(pooled), 0.0, 0.4)
    else:
        records = list(simulator(method, seeded(pooled), 0.0, 0.4).rounds())
        assert len(records) == 2
        assert not any(record.left_out for record in records)


@pytest.mark.parametrize(("name", "off"), [("dapperfl", "gamma"), ("moon", "mu")])
def test_a_method_whose_term_is_off_needs_no_representation(name, off):
    method = methods.load(name).from_preset("default", **{off: 0.0})
    world = simulator(method, seeded(pooled), 0.0)
    assert not any(record.left_out for record in world.rounds())


def test_fedsr_refuses_a_last_layer_whose_weight_is_computed():
    with pytest.raises(TraceError, match='not computed, as of "fc"'):
        simulator(methods.load("fedsr")(), seeded(WeightNorm), 0.0)


def test_a_net_with_fewer_logits_than_classes_is_refused_at_once():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    with pytest.raises(ConfigError, match="returns 2 logits, but there are 3 classes"):
        simulator(DapperFL(), net, 0.0)


def test_a_net_that_does_not_run_in_training_or_with_a_methods_layers_is_refused_in_a_line():
    def fails(net: Any, x: torch.Tensor) -> Any:
        assert not net.training, "no training here"
        return net.fc(x.mean((2, 3)))

    with pytest.raises(ConfigError, match=r"does not run in training.*: no training here"):
        simulator(DapperFL(), Made(fails, fc=nn.Linear(3, 5)), 0.0)

    def reads_head(net: Any, x: torch.Tensor) -> Any:
        return net.fc(x.mean((2, 3)) * len(net.fc.__constants__))

    with pytest.raises(ConfigError, match=r"what the method adds to it: .* '__constants__'"):
        simulator(methods.load("fedsr")(), Made(reads_head, fc=nn.Linear(3, 5)), 0.0)


def used() -> nn.Module:
    class Remembers(nn.Module):
        """Holds on to its last activations, as nets with hooks for features do."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = conv_bn(3, 8), nn.Linear(8, 5)
            self.seen: dict[str, torch.Tensor] = {}
            self(torch.ones(2, 3, 8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen["z"] = self.body(x).mean((2, 3))
            logits: torch.Tensor = self.fc(self.seen["z"])
            return logits

    return Remembers()


@pytest.mark.parametrize("name", methods.names())
def test_a_net_that_holds_on_to_activations_trains_with_every_method(name):
    records = list(simulator(methods.load(name)(), seeded(used), 0.0, 0.4).rounds())
    assert not any(record.left_out for record in records)


def test_a_net_in_which_nothing_can_be_cut_trains_on_full_devices_alone():
    method = DapperFL(gamma=0.0)
    assert not any(record.left_out for record in simulator(method, recurrent(), 0.0).rounds())
    with pytest.raises(BudgetError, match=r'no channel of this net .* "gru" in rnn'):
        next(simulator(method, recurrent(), 0.0, 0.4).rounds())


def backbone() -> nn.Module:
    """Layers that are to stay as they are, and one more that learns before the head."""
    fixed = nn.Sequential(conv_bn(3, 8), conv_bn(8, 8)).requires_grad_(False)
    learns = conv_bn(8, 8)
    return nn.Sequential(fixed, learns, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


PRESETS = [
    *((name, "default") for name in methods.names()),
    *(("dapperfl", preset) for preset in ("paper", "release")),
]


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_weights_that_do_not_learn_stay_what_they_are_to_the_last_bit(name, preset):
    method = methods.load(name).from_preset(preset)
    world = simulator(method, seeded(backbone), 0.0, 0.4, 0.0)
    before = world.start().server.weights
    *_, last = world.rounds()
    assert not last.left_out
    after = last.snapshot.server.weights
    assert len(world.graph.frozen) == 6
    assert all(torch.equal(after[each], before[each]) for each in world.graph.frozen)
    assert not torch.equal(after["1.0.weight"], before["1.0.weight"])
