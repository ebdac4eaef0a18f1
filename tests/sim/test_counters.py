import torch
from torch import nn

from dapperfl.sim.counters import Counters


class Twice(nn.Module):
    """Uses one norm twice, another never, and counts a third by a mean over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.never = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        self.mean = nn.BatchNorm1d(3, momentum=None)

    def forward(self, x):
        return self.mean(self.twice(self.twice(x)))


def values(net: Twice) -> list[int]:
    layers = (net.twice, net.never, net.mean)
    return [int(layer.get_buffer("num_batches_tracked")) for layer in layers]


def test_hidden_steps_are_counted_at_the_end_of_an_epoch():
    net = Twice()
    counters = Counters(net)
    x = torch.randn(4, 3)
    with counters.watched():
        net(x)
    assert values(net) == [2, 0, 1]
    for _ in range(3):
        counters.steps += 1
        with counters.hidden():
            net(x)
    assert values(net) == [2, 0, 4]  # the last one needs its count, so it keeps counting
    counters.settle()
    assert values(net) == [8, 0, 4]
    counters.settle()
    assert values(net) == [8, 0, 4]


def test_layers_whose_steps_differ_count_for_themselves():
    net = Twice()
    counters = Counters(net)
    x = torch.randn(4, 3)
    with counters.watched():
        net(x)
    with counters.watched():
        net.twice(x)
    assert counters.disagree
    counters.steps += 1
    with counters.hidden():
        net(x)
    counters.settle()
    assert values(net) == [5, 0, 2]
