"""NeFL: nested submodels with norms and step sizes of their own per level (Kang et al., 2023).

Weights are shared and averaged over those who hold an entry. Norm layers (parameters and
statistics) and the learnable step of each residual block are inconsistent between levels: the
server keeps a copy for each, in `ServerState.extra` under "rho/name".
"""

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from dapperfl.core.aggregation import Aggregator, CoverageMean
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
from dapperfl.core.submodel import Submodel
from dapperfl.methods.base import SubmodelMethod
from dapperfl.settings import setting

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NeFL(SubmodelMethod):
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
        net = copy.deepcopy(net)
        blocks = [module for module in net.modules() if "step" in module._parameters]
        for block in blocks:
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
        submodel = self.compact(server, rho)
        weights = submodel.slice(server.weights) | _of_level(server.extra, rho)
        rung = {"rung": torch.tensor(ladder.index(rho))}  # comes back with the update
        model = LocalModel(weights, submodel)
        return Assignment(server.round_num + 1, device, model, epochs, rung)

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Say which rung was trained."""
        return Report(shared=work.shared)

    def aggregator(self, server: ServerState) -> Aggregator:
        """Divide each entry by the weight of those who hold it."""
        return CoverageMean(server.weights)

    def update(self, server: ServerState, updates: Iterable[ClientUpdate]) -> ServerState:
        """Average shared weights over holders, and norms and steps within each level."""
        rungs: dict[float, _LevelMean] = {}

        def sorted_out() -> Iterator[ClientUpdate]:
            for update in updates:
                rho = _ladder(server)[int(update.shared["rung"])]
                own = _inconsistent(update.model.submodel, update.model.weights)
                rungs.setdefault(rho, _LevelMean()).add(own, update.num_samples)
                yield update

        after = super().update(server, sorted_out())
        extra = dict(server.extra)
        for rho, mean in rungs.items():
            extra |= _keyed(rho, mean.result())
        top = min(_ladder(server))
        weights = after.weights | (_of_level(extra, top) if top == 0 else {})
        return server.advance(weights, extra)


class _LevelMean:
    """The sample-weighted mean of states of one shape; integers are added up."""

    def __init__(self) -> None:
        self.total = 0
        self.sums: State = {}

    def add(self, state: State, samples: int) -> None:
        self.total += samples
        for name, tensor in state.items():
            part = tensor.double() * samples if tensor.is_floating_point() else tensor
            self.sums[name] = self.sums[name] + part if name in self.sums else part

    def result(self) -> State:
        return {
            name: (tensor / self.total).float() if tensor.is_floating_point() else tensor
            for name, tensor in self.sums.items()
        }


def _ladder(server: ServerState) -> list[float]:
    """Return the levels of the fleet, the weakest first; the full net is always a level."""
    return sorted({0.0, *(device.rho for device in server.fleet)}, reverse=True)


def _draw(ladder: Sequence[float], rho: float, dice: Dice) -> float:
    """Draw a rung from two below to two above the device's own."""
    here = ladder.index(rho)
    near = ladder[max(0, here - 2) : here + 3]
    return near[int(torch.randint(len(near), (), generator=dice.own()))]


def _inconsistent(submodel: Submodel, state: State) -> State:
    """Pick what each level has for itself: norm parameters, their statistics, and steps."""
    graph: ChannelGraph = submodel.graph
    layers = {name.rpartition(".")[0] for name in graph.gates}
    return {
        name: tensor
        for name, tensor in state.items()
        if name.rpartition(".")[0] in layers or name.rpartition(".")[2] == "step"
    }


def _keyed(rho: float, state: State) -> State:
    return {f"{rho}/{name}": tensor for name, tensor in state.items()}


def _of_level(extra: State, rho: float) -> State:
    prefix = f"{rho}/"
    return {key.removeprefix(prefix): t for key, t in extra.items() if key.startswith(prefix)}
