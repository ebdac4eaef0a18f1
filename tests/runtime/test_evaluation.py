import torch
from tests.tiny import tiny_graph, tiny_net
from torch import nn

from dapperfl.core.messages import LocalModel
from dapperfl.core.net import Batch
from dapperfl.core.state import snapshot
from dapperfl.runtime.evaluation import accuracy, evaluate


def test_accuracy_is_the_share_of_right_answers_over_all_batches():
    net = nn.Identity()
    batches = [
        Batch(torch.eye(3), torch.tensor([0, 1, 0])),  # two of three
        Batch(torch.eye(3)[:1], torch.tensor([0])),  # one of one
    ]
    assert accuracy(net, batches) == 75.0


def test_evaluation_uses_the_given_weights_in_evaluation_mode():
    net = tiny_net().train()
    other = tiny_net(5).eval()
    model = LocalModel(snapshot(other), tiny_graph(net).full())
    x = torch.randn(20, 3, 6, 6)
    y = other(x).argmax(1)
    assert evaluate(net, model, {"a": [Batch(x, y)], "b": [Batch(x, (y + 1) % 3)]}) == {
        "a": 100.0,
        "b": 0.0,
    }
    assert net.training
