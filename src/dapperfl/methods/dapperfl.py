"""DapperFL: Model Fusion Pruning, Domain Adaptive Regularisation, heterogeneous aggregation.

Jia et al., "DapperFL: Domain Adaptive Federated Learning with Model Fusion Pruning for Edge
Devices", NeurIPS 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from dapperfl.core.aggregation import Aggregator, RecoveredMean, Recovery
from dapperfl.core.channels import Scope
from dapperfl.core.fusion import fuse, fusion_factor
from dapperfl.core.losses import feature_norm
from dapperfl.core.messages import Assignment, Device, LocalModel, ServerState, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import Dice
from dapperfl.core.scores import l1_scores
from dapperfl.core.submodel import Submodel
from dapperfl.methods.base import MeasuringMethod
from dapperfl.settings import Range, setting, with_default

# What the paper and the release have in common: no device shows another what its pictures look
# like, all weigh as many samples as they have, each trains the whole net for an epoch, and the last
# model is the one that is handed out.
_AS_PUBLISHED = {
    "averaging": 0.0,
    "recalibrate_rounds": 0,
    "restyle": 0.0,
    "restyle_rounds": 0,
    "weight_power": 1.0,
    "dense": "full",
    "scope": "all",
    "dar_reduce": "sum",
}


@dataclass(frozen=True, kw_only=True)
class DapperFL(MeasuringMethod):
    """Train the strongest channels of the net, fused with the global model; then recover."""

    alpha_0: float = setting(0.9, "fusion factor of the first round (Eq. 2)", Range(0, at_most=1))
    alpha_min: float = setting(0.1, "smallest fusion factor (Eq. 2)", Range(0, at_most=1))
    epsilon: float = setting(0.2, "how fast the fusion factor falls (Eq. 2)", Range(0, at_most=1))
    gamma: float = setting(0.01, "weight of the representation's norm (Eq. 5)", Range(0))
    dar_power: Literal[1, 2] = setting(2, "power of that norm: 2 in the paper, 1 in the release")
    dar_reduce: Literal["sum", "mean"] = setting("mean", "sum (paper) or mean over features")
    recovery: Recovery = setting("gated", "what a pruned entry counts as in the average (Eq. 6)")
    scope: Scope = setting(
        "auto",
        "cut inner channels only, or residual streams too; auto: these where they are wide, or a "
        "level cannot do without",
    )
    multiple: int = setting(
        8, "channel counts are multiples of this where the budget allows", Range(1)
    )
    dense: Literal["full", "batches", "never"] = setting(
        "never",
        "what a device trains before it prunes: an epoch, some batches, or nothing: then the "
        "server prunes, and no device holds more than its level allows",
    )
    dense_batches: int = setting(2, "how many batches these are", Range(1))
    averaging: float = with_default(MeasuringMethod, "averaging", 0.1)
    recalibrate_rounds: int = with_default(MeasuringMethod, "recalibrate_rounds", 10)
    restyle: float = with_default(MeasuringMethod, "restyle", 0.5)
    restyle_rounds: int = with_default(MeasuringMethod, "restyle_rounds", 20)
    weight_power: float = with_default(MeasuringMethod, "weight_power", 0.5)

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {**_AS_PUBLISHED, "recovery": "paper"},
        "release": {
            **_AS_PUBLISHED,
            "alpha_0": 0.0,
            "alpha_min": 0.0,
            "dar_power": 1,
            "recovery": "zero",
        },
    }

    @property
    def needs_representation(self) -> bool:
        """The regulariser is the norm of z."""
        return self.gamma > 0

    def compact(self, server: ServerState, rho: float) -> Submodel:
        """Prune the global model, as a device would without tuning it first."""
        return self.prune(server.model, rho)

    def prune(self, model: LocalModel, rho: float) -> Submodel:
        """Keep the channels with the largest l1 norm (Algorithm 1, line 3)."""
        scores = l1_scores(model.submodel.graph, model.weights)
        return scores.top(rho, scope=self.scope, multiple=self.multiple)

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return cross-entropy plus gamma times the norm of the representation (Eq. 5)."""
        if self.gamma == 0:
            return super().loss(net, batch, work)
        z, logits = net.split(batch.x)
        penalty = feature_norm(z, self.dar_power, self.dar_reduce)
        return cross_entropy(logits, batch.y) + self.gamma * penalty

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send the global model, or its part for those who never hold the whole."""
        model = self.measured_in(server, device)
        return Assignment(server.round_num + 1, device, model, epochs)

    def measured_in(self, server: ServerState, device: Device) -> LocalModel:
        """Return the global model, or its part for those who never hold the whole."""
        return server.model if self.dense != "never" else self.take_home(server, device.rho)

    def acts_after(self, epoch: int) -> bool:
        """Fuse and prune after the first epoch, or a part of it."""
        fuses = max(self.alpha_0, self.alpha_min) > 0
        return epoch == 1 and (fuses or self.dense != "never")

    def batches_before_acting(self, epoch: int) -> int | None:
        """The dense part may be shorter than an epoch."""
        return self.dense_batches if epoch == 1 and self.dense == "batches" else None

    def after_epoch(self, epoch: int, local: LocalModel, work: Work) -> LocalModel:
        """After the dense epoch, fuse (Eq. 1, 2), then prune (Algorithm 1).

        What the server has pruned already is fused with its part of the global model.
        """
        alpha = fusion_factor(work.round_num, self.alpha_0, self.alpha_min, self.epsilon)
        learnt = local.submodel.graph.learnt
        fused = fuse(work.model.weights, local.weights, alpha, parameters=learnt)
        if self.dense == "never":
            return LocalModel(fused, local.submodel)
        kept = self.prune(LocalModel(fused, local.submodel), work.device.rho)
        return LocalModel(kept.slice(fused), kept)

    def aggregator(self, server: ServerState) -> Aggregator:
        """Recover what was pruned from the last global model, then average (Eq. 6, 7)."""
        return RecoveredMean(server.weights, self.recovery)
