"""On CUDA a run is as repeatable as on the CPU; blind, it is judged by what is kept aside."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dapperfl import methods
from dapperfl.errors import ConfigError
from dapperfl.lab.build import build, build_net
from dapperfl.lab.resolve import resolve
from dapperfl.runtime.checkpoint import load_checkpoint, save_checkpoint
from tests.lab.tuning import poisoned_world


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["loop", "graphs"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", methods.names())
def test_a_run_resumed_on_cuda_ends_bit_for_bit_where_the_uninterrupted_one_does(
    name, precision, engine, tmp_path
):
    small = ["rounds=3", "train.epochs=1", "data.fraction=0.05", "net.width=8"]
    cuda = ["engine.device=cuda", f"engine.name={engine}", f"engine.precision={precision}"]
    config = resolve(None, [f"method={name}", *cuda, *small])
    whole = []
    for record in build(config).rounds():
        whole.append(record)
        if record.round_num == 2:
            save_checkpoint(tmp_path, record.snapshot)
    again = build(config)
    *_, last = again.rounds(load_checkpoint(tmp_path, again.start()))
    ours, theirs = (r.snapshot.server.weights for r in (last, whole[-1]))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert last.accuracy == whole[-1].accuracy


def shuffled(num_classes: int) -> nn.Module:
    """Make a net with weights of numpy's generator and a width of Python's."""
    width, last = random.randint(4, 99), np.random.randn(num_classes)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.Linear(width, num_classes))
    net[-1].bias.data = torch.from_numpy(last)
    return net


def test_a_net_is_the_same_whichever_generator_draws_its_weights():
    before = random.getstate()
    config = resolve(None, [f"net.name={__name__}:shuffled"])
    one, two = (build_net(config, num_classes=3, in_channels=3).state_dict() for _ in range(2))
    other = build_net(replace(config, seed=1), num_classes=3, in_channels=3).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["2.bias"], other["2.bias"])
    assert random.getstate() == before


def test_a_blind_run_learns_the_same_and_never_touches_the_test_sets(toy):
    small = ["rounds=2", "net.width=4", "train.epochs=1", "data.reserve=12"]
    poisoned = f"data={poisoned_world.__name__}:load"
    seeing, blind = build(toy(*small)), build(toy(*small, poisoned, "data.blind=true"))
    for ours, theirs in zip(blind.rounds(), seeing.rounds(), strict=True):
        assert ours.accuracy == theirs.validation
        assert ours.validation == {}
        assert ours.loss == theirs.loss


def test_blind_needs_something_to_look_at(toy):
    with pytest.raises(ConfigError, match=r"set data\.reserve .* or data\.validation"):
        toy("data.blind=true")
