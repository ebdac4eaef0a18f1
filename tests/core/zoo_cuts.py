"""All nets of the zoo, their graphs, and ways to cut and run them."""

from functools import cache

import torch
from tests.core.zoo import SQUARE_NETS
from tests.core.zoo_attention import ATTENTIVE_NETS
from tests.core.zoo_functional import FUNCTIONAL_NETS
from tests.core.zoo_odd import ODD_NETS
from tests.core.zoo_pinned import PINNED_NETS
from torch import Tensor
from torch.nn import functional as F

from dapperfl.core.calls import tensors_in
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.rng import generator
from dapperfl.core.scores import random_scores
from dapperfl.core.trial import NoDropout

ZOO = [*SQUARE_NETS, *FUNCTIONAL_NETS, *ODD_NETS, *ATTENTIVE_NETS, *PINNED_NETS]


def build(cls):
    """Build a net in double precision, with biases, gains and statistics off zero and one."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = cls().double()
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point() and tensor.dim() < 3 and "log" not in name:
                tensor.add_(0.1 * torch.rand_like(tensor))
    return net


@cache
def graph_of(cls) -> ChannelGraph:
    """Trace a net of the zoo, once."""
    return ChannelGraph.trace(build(cls), build(cls).example())


def draw(graph, seed, scope="all"):
    """Draw a submodel with any number of channels in each group."""
    rng = generator(seed, "draw")
    counts = {}
    for group in graph.in_scope(scope):
        bundles = torch.randint(1, group.size // group.bundle + 1, (), generator=rng)
        counts[group] = int(bundles) * group.bundle
    return random_scores(graph, rng).keep(counts)


def smallest(graph):
    """Return the submodel with one bundle in each group."""
    return random_scores(graph, generator(4)).keep({g: g.bundle for g in graph.groups})


def run(net, x) -> list[Tensor]:
    """Run a net so that sizes do not change what is drawn at random."""
    with torch.random.fork_rng(), NoDropout():
        torch.manual_seed(1)
        return list(tensors_in(net(x)))


def loss_of(net, x):
    logits, *others = run(net, x)
    loss = F.cross_entropy(logits, torch.arange(len(x)) % logits.shape[1])
    return loss + sum(0.1 * out.square().mean() for out in others)
