import pytest
import torch
from tests.runtime.letters import ASKED, CODEC, GRAPH, NET, STAMP, moments
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.messages import Moments
from dapperfl.errors import MessageError
from dapperfl.runtime.cargo import Cargo, variance_of


def test_a_fingerprint_is_the_nets_and_not_its_weights():
    ours = Cargo.of(NET, GRAPH)
    again = tiny_net(seed=5)
    assert Cargo.of(again, tiny_graph(again)).fingerprint == ours.fingerprint
    for other in (tiny_net(width=4), tiny_net(norm=False)):
        assert Cargo.of(other, tiny_graph(other)).fingerprint != ours.fingerprint
    assert Cargo.of(tiny_net().double(), GRAPH).fingerprint != ours.fingerprint


def test_a_net_without_norms_has_no_moments():
    bare = tiny_net(norm=False)
    assert Cargo.of(bare, tiny_graph(bare)).norms == ()


def test_a_variance_is_named_like_its_mean():
    assert variance_of("a.running_mean.bn.running_mean") == "a.running_mean.bn.running_var"


def test_a_variance_beside_a_large_mean_keeps_its_digits():
    # As second moments in float32, 1e6 + 0.1 would have come back as 1e6 + 0.125.
    name = CODEC.cargo.norms[0]
    size = GRAPH.shapes[name]
    means = moments().means | {name: torch.full(size, 1000.0, dtype=torch.float64)}
    variance = name.replace("mean", "var")
    second = moments().second | {variance: torch.full(size, 1_000_000.1, dtype=torch.float64)}
    sent = moments(means=means, second=second)
    back = CODEC.decode_reply(CODEC.encode_reply(sent, STAMP), ASKED).message
    assert isinstance(back, Moments)
    spread = back.second[variance] - back.means[name].square()
    assert torch.allclose(spread, torch.full(size, 0.1, dtype=torch.float64), atol=1e-8)


def test_moments_of_a_missing_layer_are_not_sent():
    with pytest.raises(MessageError, match=r"bn1\.running_mean"):
        CODEC.encode_reply(moments(means={}, second={}), STAMP)
