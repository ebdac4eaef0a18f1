"""What one client's training leaves in a net does not reach the next."""

import pytest
import torch
from torch import nn

from dapperfl.sim.belongings import Belongings


class Hoarder(nn.Module):
    """Counts, replaces a buffer, fills a list and makes a new attribute while it runs."""

    mean: torch.Tensor

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.steps = 0
        self.seen = [self.fc]

    def forward(self, x):
        self.steps += 1
        self.mean = self.mean + 1
        self.seen.append(x)
        self.last = x
        return self.fc(x)


def test_numbers_are_taken_back():
    net = Hoarder()
    things = Belongings(net)
    net(torch.ones(1, 2))
    assert things.notes() != things.first
    things.take_back(things.first)
    assert net.steps == 0
    assert things.notes() == things.first


def test_a_tensor_in_a_buffers_place_leaves_its_values_there():
    net = Hoarder()
    own = net.mean
    things = Belongings(net)
    assert things.put_back() == []
    net(torch.ones(1, 2))
    assert net.mean is not own
    assert things.put_back() == ["mean"]
    assert net.mean is own
    assert own.tolist() == [1, 1]


def test_things_of_a_users_parts_are_as_at_first_and_still_the_nets_own():
    net = Hoarder()
    things = Belongings(net)
    for _ in range(2):
        net(torch.ones(1, 2))
        things.forget()
        assert net.seen == [net.fc]
        assert net.seen[0] is net.fc
        assert not hasattr(net, "last")


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_scripted_functions_of_a_net_are_not_copied():
    net = Hoarder()
    net.act = torch.jit.trace(torch.tanh, torch.ones(1, 2))
    Belongings(net).take_back(Belongings(net).first)
    assert vars(net)["act"](torch.zeros(1)).item() == 0
