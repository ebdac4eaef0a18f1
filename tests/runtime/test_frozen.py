import torch
from tests.tiny import tiny_graph, tiny_net
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import LocalModel
from dapperfl.core.scores import ordered_scores
from dapperfl.core.state import State, snapshot
from dapperfl.runtime.frozen import KEEP, FrozenNets


def test_one_net_holds_one_model_after_another():
    graph = tiny_graph()
    nets = FrozenNets(tiny_net(), turns=False)
    x = torch.randn(4, 3, 6, 6)
    found = []
    for seed in (1, 2, 1):
        other = tiny_net(seed).eval()
        net = nets.holding(LocalModel(snapshot(other), graph.full()))
        assert torch.equal(net(x), other(x))
        found.append(net)
    assert found[0] is found[1] is found[2]


def test_a_smaller_model_gets_a_net_of_its_own_shape():
    net = tiny_net()
    graph, weights = tiny_graph(net), snapshot(net)
    nets = FrozenNets(net, turns=False)
    x = torch.randn(4, 3, 6, 6)
    for start in (0, 3):  # the same sizes, other channels
        submodel = ordered_scores(graph, start).top(0.5, multiple=1)
        small = submodel.shrink(net).eval()
        held = nets.holding(LocalModel(submodel.slice(weights), submodel))
        assert torch.equal(held(x), small(x))
    assert len(nets.nets) == 1
    for rho in (0.1, 0.2, 0.3, 0.4, 0.6, 0.7):
        submodel = ordered_scores(graph).top(rho, multiple=1)
        nets.holding(LocalModel(submodel.slice(weights), submodel))
    assert len(nets.nets) <= KEEP


class WithTable(nn.Module):
    """Scales channels by a table that is not part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 1), nn.Linear(4, 2)
        self.register_buffer("table", torch.arange(1.0, 5).view(4, 1, 1), persistent=False)

    def forward(self, x):
        return self.fc((self.conv(x) * self.table).mean((2, 3)))


def test_buffers_outside_the_state_follow_the_channels():
    net = WithTable().eval()
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 6, 6))
    weights: State = snapshot(net)
    nets = FrozenNets(net, turns=False)
    x = torch.randn(4, 3, 6, 6)
    for start in (0, 1):
        submodel = ordered_scores(graph, start).keep({graph.groups[0]: 2})
        small = submodel.shrink(net).eval()
        held = nets.holding(LocalModel(submodel.slice(weights), submodel))
        assert torch.equal(held(x), small(x))
