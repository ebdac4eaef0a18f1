"""What a federated method is: a frozen bag of hyper-parameters and a few functions.

Every default is FedAvg. A method holds no state, no device, no optimiser and no loop, so the same
object runs in simulation and on real devices. `loss` is pure: it reads tensors and returns one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dapperfl.core.aggregation import Aggregator, CoverageMean, RecoveredMean
from dapperfl.core.channels import ChannelGraph, Group, Scope
from dapperfl.core.cost import keep_for_budget
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
from dapperfl.core.rng import Dice, generator
from dapperfl.core.scores import Scores
from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel
from dapperfl.errors import ConfigError
from dapperfl.settings import Range, check_settings, setting

Statistics = Literal["average", "recalibrate"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods; its fields are the hyper-parameters, its functions the algorithm."""

    weight_power: float = setting(
        1.0,
        "a device weighs its number of samples to this power in the mean: 1 as in FedAvg, 0 all "
        "alike",
        Range(0, at_most=1),
    )
    averaging: float = setting(
        0.0,
        "the model that is handed out is a running mean over about this share of the rounds so "
        "far: 0 hands out the last one, .1 a mean of about ten after a hundred rounds, and still "
        "the last one up to the tenth; devices train on from the last one",
        Range(0, at_most=1),
    )
    restyle: float = setting(
        0.0,
        "share of pictures that are trained in the colours of other devices' pictures, whose means "
        "and deviations are exchanged for it; 0 exchanges nothing",
        Range(0, at_most=1),
    )
    restyle_rounds: int = setting(
        0,
        "over so many rounds that share grows from nothing, for restyled pictures are harder to "
        "begin with; 0 restyles in full at once",
        Range(0),
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_preset(cls, preset: str = "default", **overrides: Any) -> Self:
        """Build the method with a named set of values, some of them changed."""
        if preset not in cls.presets:
            known = ", ".join(cls.presets)
            raise ConfigError(f'unknown preset "{preset}" of {cls.__name__}; choose one of {known}')
        return cls(**{**cls.presets[preset], **overrides})

    # --- once ---

    def prepare(self, net: nn.Module, head: str | None) -> nn.Module:
        """Return the net this method trains, e.g. with a layer added before its head."""
        return net

    def init(self, model: LocalModel, fleet: Sequence[Device]) -> ServerState:
        """Return the server's state before the first round."""
        return ServerState(0, model, tuple(fleet))

    @property
    def needs_representation(self) -> bool:
        """Whether a hook asks for `net.split` or `net.at`: then the net must end in a linear layer.

        It is asked before the first round, in which the hook may not want it yet.
        """
        return False

    # --- server ---

    def compact(self, server: ServerState, rho: float) -> Submodel:
        """Choose the submodel of the global model that a device at level rho takes home."""
        return server.model.submodel.graph.full()

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Say what a device is to do in the next round; None leaves it out."""
        return Assignment(server.round_num + 1, device, server.model, epochs)

    def aggregator(self, server: ServerState) -> Aggregator:
        """Return what folds the client models of a round (Eq. 6, 7)."""
        return RecoveredMean(server.weights)

    def update(self, server: ServerState, updates: Iterable[ClientUpdate]) -> ServerState:
        """Fold the updates that came, one at a time, into the next server state."""
        mean = self.aggregator(server)
        for update in updates:
            mean.add(update.model, self.weight(update))
        return server.advance(mean.result())

    def weight(self, update: ClientUpdate) -> float:
        """Say how much an update counts in the mean.

        In 256ths: the sums over devices are then exact, and the same whoever answers first.
        """
        weight: float = update.num_samples**self.weight_power
        return round(256 * weight) / 256

    def take_home(self, server: ServerState, rho: float) -> LocalModel:
        """Return the compact model of a level, cut from the global one."""
        return server.once(self, rho, lambda: cut(server, self.compact(server, rho)))

    def measured_in(self, server: ServerState, device: Device) -> LocalModel:
        """Return the net in which a device measures batch-norm statistics, where any are."""
        return server.model

    def measures(self, round_num: int) -> bool:
        """Tell whether devices measure the batch-norm statistics of what a round hands out.

        Otherwise those of their nets are averaged as weights are.
        """
        return False

    def deliver(self, server: ServerState) -> LocalModel:
        """Return the model that is evaluated and handed out."""
        return server.model

    def restyled_share(self, round_num: int) -> float:
        """Say how likely a picture is trained in another device's colours in a round."""
        if round_num > self.restyle_rounds:
            return self.restyle
        return self.restyle * (round_num - 1) / self.restyle_rounds

    # --- client ---

    def own(self, work: Work) -> State:
        """Return tensors that this client trains beside the net; it finds them in `work.memory`."""
        return {}

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return the objective of one batch."""
        return cross_entropy(net(batch.x), batch.y)

    def after_epoch(self, epoch: int, local: LocalModel, work: Work) -> LocalModel:
        """Return the model to go on with; a smaller one makes the net physically smaller."""
        return local

    def acts_after(self, epoch: int) -> bool:
        """Tell whether `after_epoch` does anything; if not, nobody waits for the weights."""
        return type(self).after_epoch is not Method.after_epoch

    def batches_before_acting(self, epoch: int) -> int | None:
        """Say after how many batches of an epoch `after_epoch` acts; None: at the epoch's end."""
        return None

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Return what to send beside the weights, and what to keep for later rounds."""
        return Report()

    def extra_forwards(self, work: Work) -> int:
        """Count the forward passes that `loss` makes beside the training one, for the costs."""
        return 0


@dataclass(frozen=True, kw_only=True)
class MeasuringMethod(Method):
    """A method whose global net can have its batch-norm statistics measured anew."""

    bn_statistics: Statistics = setting(
        "average", "average the clients' batch-norm statistics, or measure them anew"
    )
    recalibrate_rounds: int = setting(
        0,
        "in so many first rounds they are measured in any case: while weights move fast, averages "
        "lag behind them",
        Range(0),
    )

    def measures(self, round_num: int) -> bool:
        """Measure statistics of the new global net in a phase of their own, or at first only."""
        return self.bn_statistics == "recalibrate" or round_num <= self.recalibrate_rounds


@dataclass(frozen=True, kw_only=True)
class SubmodelMethod(Method, ABC):
    """A method whose server cuts a submodel for each device; only its scores differ."""

    scope: Scope = setting(
        "all",
        "cut inner channels only, or residual streams too; auto: these where they are wide, or a "
        "level cannot do without",
    )
    multiple: int = setting(8, "channel counts are multiples of this where possible", Range(1))

    @abstractmethod
    def scores(self, server: ServerState, rng: torch.Generator) -> Scores:
        """Say how much each channel is wanted in the next round; `rng` is the same for all."""

    def counts(self, server: ServerState, rho: float) -> Mapping[Group, int]:
        """Say how many channels of each group the budget of a level buys."""
        return _counts(server.model.submodel.graph, (rho,), self.scope, self.multiple)

    def compact(self, server: ServerState, rho: float) -> Submodel:
        """Keep the best-scored channels that the budget of a level buys."""
        return self.scores(server, generator(0, "compact")).keep(self.counts(server, rho))

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send a device the submodel of its level, the same to all devices of a level."""

        def small() -> LocalModel:
            scores = self.scores(server, dice.shared())
            return cut(server, scores.keep(self.counts(server, device.rho)))

        model = server.once(self, ("round", dice.seed, device.rho), small)
        return Assignment(server.round_num + 1, device, model, epochs)


@dataclass(frozen=True, kw_only=True)
class NestedMethod(SubmodelMethod):
    """Weaker devices hold a part of what stronger ones hold; entries are averaged over holders."""

    def counts(self, server: ServerState, rho: float) -> Mapping[Group, int]:
        """Keep no more of any group than the stronger levels of the fleet do."""
        stronger = [level for level in server.levels if level < rho]
        graph = server.model.submodel.graph
        return _counts(graph, (*stronger, rho), self.scope, self.multiple)

    def aggregator(self, server: ServerState) -> Aggregator:
        """Divide each entry by the weight of those who hold it."""
        return CoverageMean(server.weights)

    def deliver(self, server: ServerState) -> LocalModel:
        """Return the net of the strongest level: what lies beyond it nobody ever trains."""
        strongest = server.levels[0]
        return self.take_home(server, strongest) if strongest > 0 else server.model

    def measured_in(self, server: ServerState, device: Device) -> LocalModel:
        """Measure statistics in what is handed out."""
        return self.deliver(server)


def cut(server: ServerState, submodel: Submodel) -> LocalModel:
    """Cut a submodel from the global model."""
    return LocalModel(submodel.slice(server.weights), submodel)


@lru_cache(maxsize=64)  # it depends on the level alone, and is asked for every device and round
def _counts(
    graph: ChannelGraph, rhos: tuple[float, ...], scope: Scope, multiple: int
) -> Mapping[Group, int]:
    """Return the least of what each of these budgets buys, group by group.

    A smaller budget may buy more of one group and less of another, so one alone does not nest.
    """
    bought = [keep_for_budget(graph, rho, scope=scope, multiple=multiple) for rho in rhos]
    return {group: min(counts[group] for counts in bought) for group in bought[0]}
