"""One net's models and moments as the tensors of a message.

Names and order come from the channel graph, which both sides derive from the same net.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.core.messages import LocalModel, Moments
from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel
from dapperfl.errors import MessageError
from dapperfl.runtime.packing import Dtypes, Entry, join, pack_bits, split, take, unpack_bits
from dapperfl.runtime.statistics import norm_names

KEPT = "kept"


@dataclass(frozen=True, eq=False)
class Cargo:
    """What is known of a net on both sides; tensors that arrive go to where the net is."""

    graph: ChannelGraph
    dtypes: Dtypes
    norms: tuple[str, ...]  # the running means of its batch norms
    device: torch.device

    @classmethod
    def of(cls, net: nn.Module, graph: ChannelGraph) -> "Cargo":
        """Look at a net, as the method prepared it, and its graph."""
        state = net.state_dict()
        dtypes = {name: tensor.dtype for name, tensor in state.items()}
        norms = tuple(f"{name}.running_mean" for name in norm_names(net))
        return cls(graph, dtypes, norms, next(iter(state.values())).device)

    @cached_property
    def fingerprint(self) -> str:
        """What tells this net from another, in a few letters."""
        groups = [(group.name, group.size, group.bundle) for group in self.graph.groups]
        dtypes = [str(dtype) for dtype in self.dtypes.values()]
        facts = [groups, list(self.graph.shapes.items()), dtypes, self.norms]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @cached_property
    def limit(self) -> int:
        """The bytes of the full model: no smaller one has more."""
        return cost(self.graph.full()).upload_bytes

    def pack_model(self, model: LocalModel) -> State:
        """Return kept channels as bits, and the weights end to end."""
        bits = pack_bits(model.submodel.flags[:-1])
        return {KEPT: bits, **join(model.weights, model.submodel.shapes, self.dtypes)}

    def read_model(self, entries: dict[str, Entry], *, rounded: bool = False) -> LocalModel:
        """Take out a model.

        Raises:
            MessageError: If no net has such channels, or such channels no such tensors.
        """
        channels = sum(group.size for group in self.graph.groups)
        flags = unpack_bits(take(entries, KEPT), channels)
        kept = {}
        for group in self.graph.groups:
            own = flags[group.offset : group.offset + group.size]
            if not bool(own.all()):
                kept[group] = own.nonzero().flatten()
        submodel = Submodel(self.graph, kept)
        weights = split(entries, submodel.shapes, self.dtypes, halved=rounded)
        return LocalModel(self.here(weights), submodel)

    def pack_moments(self, moments: Moments) -> State:
        """Return means and variances end to end, in the net's number format.

        A variance can be rounded without harm, the difference of two large moments cannot.
        """
        state: State = {}
        for name in self.norms:
            mean, second = moments.means.get(name), moments.second.get(variance_of(name))
            if mean is None or second is None:
                raise MessageError(f'the moments of "{name}" are missing')
            variance = (second - mean.square()).clamp_min(0)
            state[name] = mean.to(self.dtypes[name])
            state[variance_of(name)] = variance.to(self.dtypes[variance_of(name)])
        return join(state, {name: tensor.shape for name, tensor in state.items()}, self.dtypes)

    def read_moments(self, entries: dict[str, Entry], submodel: Submodel) -> tuple[State, State]:
        """Take out means and second moments of a submodel's norm layers.

        Raises:
            MessageError: If they do not fit these layers.
        """
        names = [each for name in self.norms for each in (name, variance_of(name))]
        shapes = {name: submodel.shapes[name] for name in names}
        found = self.here(split(entries, shapes, self.dtypes))
        means = {name: found[name].double() for name in self.norms}
        second = {
            variance_of(name): found[variance_of(name)].double() + mean.square()
            for name, mean in means.items()
        }
        return means, second

    def here(self, state: State) -> State:
        """Bring tensors to where the net is."""
        return {name: tensor.to(self.device) for name, tensor in state.items()}


def variance_of(mean: str) -> str:
    """Return the name of the running variance that belongs to a running mean."""
    return mean.removesuffix("running_mean") + "running_var"
