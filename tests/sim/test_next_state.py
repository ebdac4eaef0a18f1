"""A state that no round could begin with, or no file hold, is refused in the round that made it."""

from dataclasses import dataclass, replace

import pytest
import torch
from tests.contracts.worlds import TRAIN, federation
from tests.tiny import tiny_net

from dapperfl.errors import RunError
from dapperfl.methods.base import Method
from dapperfl.sim.simulator import Simulator


@dataclass(frozen=True, kw_only=True)
class Spoils(Method):
    """Does something to the weights of the next state."""

    how: str = "not"

    def update(self, server, updates):
        weights = dict(super().update(server, updates).weights)
        if self.how == "lost":
            del weights["bn1.running_mean"]
        if self.how == "more":
            weights["speed"] = torch.zeros(1)
        if self.how == "shape":
            weights["fc.bias"] = weights["fc.bias"][:2]
        extra = {"lr": 0.1} if self.how == "number" else {}
        return server.advance(weights, extra)


def first_round(method: Method) -> None:
    world = Simulator(
        method=method, net=tiny_net(), federation=federation((0.0,)), train=TRAIN, rounds=1
    )
    world.round(world.start())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("lost", r'every tensor of the net, buffers too, .*: "bn1\.running_mean" is missing'),
        ("more", 'the net has no "speed"'),
        ("shape", r'"fc\.bias" has \(2,\), not \(\d,\)'),
        ("number", r'Spoils\.update keeps a float in extra\["lr"\]; only tensors'),
    ],
)
def test_what_is_wrong_with_the_next_state_is_said(how, said):
    first_round(Spoils())
    with pytest.raises(RunError, match=said):
        first_round(Spoils(how=how))


@dataclass(frozen=True, kw_only=True)
class Late(Method):
    def assign(self, server, device, epochs, dice):
        asked = super().assign(server, device, epochs, dice)
        return asked and replace(asked, round_num=server.round_num)


def test_an_assignment_of_another_round_is_refused():
    with pytest.raises(RunError, match=r"Late\.assign must ask for round 1, .* not for 0"):
        first_round(Late())
