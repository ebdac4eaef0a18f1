"""What a net must be before anybody trains it."""

import copy

import pytest
import torch
from tests.tiny import TinyNet, tiny_net
from torch import Tensor, nn

from dapperfl import nets
from dapperfl.errors import ConfigError, TraceError
from dapperfl.methods.fedavg import FedAvg
from dapperfl.runtime.local import prepared

EXAMPLE = torch.zeros(1, 3, 6, 6)


class Answering(TinyNet):
    """A net that returns more than its logits, always or in training."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        answers = {
            "dict": {"logits": out},
            "tuple": (out, x),
            "auxiliary": (out, out) if self.training else out,
            "map": out[:, :, None],
        }
        return answers[self.kind]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dict", "in evaluation it returns a dict"),
        ("tuple", "in evaluation it returns a tuple"),
        ("auxiliary", "in training it returns a tuple"),
        ("map", r"in evaluation it returns \(2, 3, 1\)"),
    ],
)
def test_a_net_that_does_not_return_logits_is_refused(kind, words):
    with pytest.raises(ConfigError, match=words):
        prepared(FedAvg(), Answering(kind), EXAMPLE)


def test_pictures_that_a_net_cannot_take_are_named():
    small = nets.build("convnet", num_classes=2, width=4)
    with pytest.raises(TraceError, match=r"on inputs of shape \(2, 3, 2, 2\).*too small.*bring"):
        prepared(FedAvg(), small, torch.zeros(1, 3, 2, 2))


class InPlace(TinyNet):
    """Changes in place what its gradient needs."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x).exp()
        return out.mul_(out)


class Detached(TinyNet):
    """Learns nothing in training."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out.detach() if self.training else out


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (InPlace(), "cannot be trained: .*inplace"),
        (Detached(), "cannot be trained: .*no parameter that wants a gradient"),
        (TinyNet().requires_grad_(False), "no parameter that wants a gradient; set requires_grad"),
    ],
)
def test_a_net_without_a_gradient_is_refused(net, words):
    with pytest.raises(ConfigError, match=words):
        prepared(FedAvg(), net, EXAMPLE)


class Bilinear(TinyNet):
    """Ends in an operation that torch does not cast on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Bilinear(3, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        squared: Tensor = self.last(out, out)
        return squared


def test_a_net_that_does_not_run_in_a_number_format_is_refused():
    prepared(FedAvg(), Bilinear(), EXAMPLE)
    with pytest.raises(ConfigError, match=r"in evaluation in bf16.*engine\.precision=fp32"):
        prepared(FedAvg(), Bilinear(), EXAMPLE, 1, "bf16")


def test_looking_at_a_net_changes_neither_it_nor_random_numbers():
    net = tiny_net().train()
    before, drawn = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    ready, _ = prepared(FedAvg(), net, EXAMPLE)
    assert ready is net
    assert net.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
