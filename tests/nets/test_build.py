import logging
import pkgutil
import sys
from typing import Any

import pytest
import torch

from dapperfl import nets
from dapperfl.errors import ConfigError

OWN = """
import functools
from torch import nn

class Plain(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(3, num_classes)

def sized(width, num_classes, in_channels):
    return nn.Sequential(nn.Conv2d(in_channels, width, 1), nn.Flatten(), nn.LazyLinear(num_classes))

def forwarding(**settings):
    return Plain(**settings)

def demanding(num_classes, depth):
    return Plain(num_classes)

partial = functools.partial(sized, width=5)
ready = Plain(2)
number = 3
def wrong(num_classes):
    return "a net"

def pretrained(num_classes):
    net = Plain(num_classes)
    net.load_state_dict(Plain(1000).state_dict())
    return net

def huge(num_classes):
    raise MemoryError
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Put a module with a user's nets on the import path and return its name."""
    (tmp_path / "own_nets.py").write_text(OWN)
    (tmp_path / "broken_nets.py").write_text("def net(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_nets"
    sys.modules.pop("own_nets", None)


@pytest.mark.parametrize("name", nets.names())
def test_every_net_maps_images_to_logits_and_trains_every_parameter(name):
    net = nets.build(name, num_classes=7, in_channels=2, width=8)
    logits = net(torch.rand(2, 2, 32, 32))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", nets.names())
def test_width_scales_a_net_and_none_means_the_default(name):
    sizes = [
        sum(p.numel() for p in nets.build(name, num_classes=10, width=width).parameters())
        for width in (8, 16, None)
    ]
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("name", nets.names())
def test_the_same_global_seed_gives_the_same_weights(name):
    with torch.random.fork_rng():
        states = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            states.append(nets.build(name, num_classes=10, width=8).state_dict()["head.weight"])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_names_are_all_that_the_family_files_offer_and_none_twice():
    families = [m.name for m in pkgutil.iter_modules(nets.__path__)]
    offered = [n for f in families for n in __import__(f"dapperfl.nets.{f}", fromlist=[f]).__all__]
    assert nets.names() == sorted(offered)
    assert len(set(offered)) == len(offered) == 6


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r'"resnt18".*did you mean "resnet18"'):
        nets.build("resnt18", num_classes=10)


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(ConfigError, match="there are convnet, mobilenetv2, resnet10"):
        nets.build("xyz", num_classes=10)


@pytest.mark.parametrize("setting", ["num_classes", "in_channels", "width"])
def test_a_setting_below_one_is_refused(setting):
    with pytest.raises(ConfigError, match=f"{setting} is 0"):
        nets.build("convnet", **{"num_classes": 10, setting: 0})


def test_a_users_class_gets_only_the_settings_it_names(own, caplog):
    with caplog.at_level(logging.WARNING):
        net: Any = nets.build(f"{own}:Plain", num_classes=4, width=9)
    assert net.head.out_features == 4
    assert "takes no width; 9 is not used" in caplog.text


def test_a_users_function_gets_all_settings_it_names(own):
    net: Any = nets.build(f"{own}:sized", num_classes=4, in_channels=2, width=6)
    assert (net[0].in_channels, net[0].out_channels) == (2, 6)


def test_a_function_that_forwards_keywords_gets_the_classes(own):
    net: Any = nets.build(f"{own}:forwarding", num_classes=4)
    assert net.head.out_features == 4


def test_a_partial_is_a_factory_too(own):
    net: Any = nets.build(f"{own}:partial", num_classes=4)
    assert net[0].out_channels == 5


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_nets:demanding", "also needs depth"),
        ("own_nets:sized", "also needs width"),
        ("own_nets:absent", "has no attribute 'absent'"),
        ("own_nets:number", "is a int; name a class or function"),
        ("own_nets:ready", "is a Plain; name a class or function"),
        ("own_nets:wrong", "returned a str, not a torch.nn.Module"),
        ("own_nets:pretrained", '"own_nets:pretrained" cannot be built: .* size mismatch'),
        ("no_such_module:net", "No module named 'no_such_module'.*PYTHONPATH"),
        ("broken_nets:net", 'cannot load "broken_nets:net".*invalid syntax'),
        (":net", 'cannot load ":net"'),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(own, spec, message):
    with pytest.raises(ConfigError, match=message) as caught:
        nets.build(spec, num_classes=4)
    assert "\n" not in str(caught.value)


def test_a_lack_of_memory_is_no_fault_of_the_net(own):
    with pytest.raises(MemoryError):
        nets.build(f"{own}:huge", num_classes=4)
