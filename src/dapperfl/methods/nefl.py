"""NeFL: nested submodels with norms and step sizes of their own per level (Kang et al., 2023).

Weights are shared and averaged over those who hold an entry. Norm layers (parameters and
statistics) and the learnable step of each residual block are inconsistent between levels: the
server keeps a copy for each, in `ServerState.extra` under "rho/name".
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from dapperfl.core.aggregation import is_averaged
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    Device,
    LocalModel,
    Report,
    ServerState,
    Work,
)
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import Dice
from dapperfl.core.scores import Scores, ordered_scores
from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel, copy_net
from dapperfl.methods.base import NestedMethod
from dapperfl.settings import setting

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NeFL(NestedMethod):
    """Prefix widths; every level trains its own norms and steps."""

    learnable_steps: bool = setting(True, "scale each residual branch by a learnt step")
    rungs: Literal["fixed", "dynamic"] = setting(
        "fixed", "train one's own level, or one drawn from two below to two above it"
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "official": {"rungs": "dynamic"},
    }

    def prepare(self, net: nn.Module, head: str | None) -> nn.Module:
        """Give a step to every residual block that has room for one (a parameter `step`)."""
        if not self.learnable_steps:
            return net
        net = copy_net(net)
        blocks = [module for module in net.modules() if "step" in module._parameters]
        for block in blocks:
            if block._parameters["step"] is None:  # a net's own stays as it is
                like = next(block.parameters())
                block.register_parameter("step", nn.Parameter(like.new_ones(())))
        if not blocks:
            logger.warning('no block of this net has a parameter "step": NeFL trains none')
        return net

    def init(self, model: LocalModel, fleet: Sequence[Device]) -> ServerState:
        """Give every level its own copy of norms and steps."""
        server = super().init(model, fleet)
        extra: State = {}
        for rho in _ladder(server):
            submodel = self.compact(server, rho)
            extra |= _keyed(rho, _inconsistent(submodel, submodel.slice(model.weights)))
        return replace(server, extra=extra)

    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Prefer the first channels: submodels are nested."""
        return ordered_scores(server.model.submodel.graph)

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send the rung's prefix with the rung's own norms and steps."""
        ladder = _ladder(server)
        rho = device.rho if self.rungs == "fixed" else _draw(ladder, device.rho, dice)
        rung = {"rung": torch.tensor(ladder.index(rho))}  # comes back with the update
        model = self.take_home(server, rho)
        return Assignment(server.round_num + 1, device, model, epochs, rung)

    def take_home(self, server: ServerState, rho: float) -> LocalModel:
        """Return a level's prefix with the level's own norms and steps."""
        model = super().take_home(server, rho)
        return LocalModel(model.weights | _of_level(server.extra, rho), model.submodel)

    def deliver(self, server: ServerState) -> LocalModel:
        """Return the net of the strongest level; where rungs are drawn, all are trained."""
        return server.model if self.rungs == "dynamic" else super().deliver(server)

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Say which rung was trained."""
        return Report(shared={"rung": work.shared["rung"]})

    def update(self, server: ServerState, updates: Iterable[ClientUpdate]) -> ServerState:
        """Average shared weights over holders, and norms and steps within each level."""
        ladder = _ladder(server)
        rungs: dict[float, list[tuple[State, float]]] = {}

        def sorted_out() -> Iterator[ClientUpdate]:
            for update in updates:
                rho = ladder[int(update.shared["rung"])]
                own = _inconsistent(update.model.submodel, update.model.weights)
                rungs.setdefault(rho, []).append((own, self.weight(update)))
                yield update

        after = super().update(server, sorted_out())
        extra = dict(server.extra)
        for rho, parts in rungs.items():
            extra |= _keyed(rho, _mean(parts))
        return server.advance(after.weights | _of_level(extra, ladder[-1]), extra)


def _mean(parts: Sequence[tuple[State, float]]) -> State:
    """Average states of one shape by weight; of counters, take the largest."""
    total = sum(weight for _, weight in parts)
    mean: State = {}
    for name, first in parts[0][0].items():
        if is_averaged(first):
            weighted = [state[name].double() * weight for state, weight in parts]
            mean[name] = (torch.stack(weighted).sum(0) / total).to(first.dtype)
        else:
            mean[name] = torch.stack([state[name] for state, _ in parts]).amax(0)
    return mean


def _ladder(server: ServerState) -> list[float]:
    """Return the levels of the fleet, the weakest first; the full net is always a level."""
    return sorted({0.0, *server.levels}, reverse=True)


def _draw(ladder: Sequence[float], rho: float, dice: Dice) -> float:
    """Draw a rung from two below to two above the device's own."""
    here = ladder.index(rho)
    near = ladder[max(0, here - 2) : here + 3]
    return near[int(torch.randint(len(near), (), generator=dice.own()))]


def _inconsistent(submodel: Submodel, state: State) -> State:
    """Pick what each level has for itself: norm parameters, their statistics, and steps.

    The statistics are the buffers of the module whose parameters a norm reads; other parameters of
    that module, as where one holds a convolution and its norm, are shared.
    """
    graph: ChannelGraph = submodel.graph
    layers = {name.rpartition(".")[0] for name in graph.norms}
    shared = {*graph.named} - graph.norms
    return {
        name: tensor
        for name, tensor in state.items()
        if (name.rpartition(".")[0] in layers and name not in shared)
        or (name.rpartition(".")[2] == "step" and tensor.dim() == 0)
    }


def _keyed(rho: float, state: State) -> State:
    return {f"{rho}/{name}": tensor for name, tensor in state.items()}


def _of_level(extra: State, rho: float) -> State:
    prefix = f"{rho}/"
    return {key.removeprefix(prefix): t for key, t in extra.items() if key.startswith(prefix)}
