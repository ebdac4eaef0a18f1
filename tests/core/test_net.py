import pytest
import torch
from tests.tiny import tiny_graph, tiny_net
from torch import nn

from dapperfl.core.net import Net
from dapperfl.errors import TraceError


def test_the_split_is_encoder_and_predictor():
    module = tiny_net().eval()
    x = torch.randn(4, 3, 6, 6)
    z, logits = Net(module, tiny_graph(module).head).split(x)
    assert z.shape == (4, 8)
    assert torch.equal(logits, module(x))
    assert torch.equal(module.fc(z), logits)


def test_a_head_may_be_called_by_keyword():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(input=x.mean((2, 3)))

    x = torch.randn(4, 3, 6, 6)
    assert torch.equal(Net(Named(), "fc").split(x)[0], x.mean((2, 3)))


def test_the_split_leaves_no_hook_behind():
    module = tiny_net().eval()
    Net(module, "fc").split(torch.randn(2, 3, 6, 6))
    assert not module.fc._forward_pre_hooks
    assert not module.fc._forward_hooks


def test_the_representation_of_other_weights_may_come_from_a_net_that_shares_some():
    module = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)]).eval()
    module[1].weight = module[0].weight
    other = {name: 2 * tensor for name, tensor in module.state_dict().items()}
    x = torch.randn(4, 3)
    z = Net(module, "2").at(other, x)
    module.load_state_dict(other)
    assert torch.equal(z, module[:2](x))


def test_a_net_without_a_linear_head_says_so_when_its_representation_is_wanted():
    net = Net(nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten()), None)
    with pytest.raises(TraceError, match="no representation"):
        net.split(torch.randn(1, 3, 1, 1))
