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
from dapperfl.core.messages import LocalModel, ServerState, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.scores import l1_scores
from dapperfl.core.submodel import Submodel
from dapperfl.methods.base import Method, Statistics
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class DapperFL(Method):
    """One dense epoch, fuse, keep the strongest channels, train the small net; then recover."""

    alpha_0: float = setting(0.9, "fusion factor of the first round (Eq. 2)", Range(0, at_most=1))
    alpha_min: float = setting(0.1, "smallest fusion factor (Eq. 2)", Range(0, at_most=1))
    epsilon: float = setting(0.2, "how fast the fusion factor falls (Eq. 2)", Range(0, at_most=1))
    gamma: float = setting(0.01, "weight of the representation's norm (Eq. 5)", Range(0))
    dar_power: Literal[1, 2] = setting(2, "power of that norm: 2 in the paper, 1 in the release")
    dar_reduce: Literal["sum", "mean"] = setting("mean", "sum (paper) or mean over features")
    recovery: Recovery = setting("gated", "what a pruned entry counts as in the average (Eq. 6)")
    scope: Scope = setting("inner", "cut inner channels only, or residual streams too")
    bn_statistics: Statistics = setting(
        "recalibrate", "average the clients' batch-norm statistics, or measure them anew"
    )
    multiple: int = setting(
        8, "channel counts are multiples of this where the budget allows", Range(1)
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {
            "dar_reduce": "sum",
            "recovery": "paper",
            "scope": "all",
            "bn_statistics": "average",
        },
        "release": {
            "alpha_0": 0.0,
            "alpha_min": 0.0,
            "dar_power": 1,
            "dar_reduce": "sum",
            "recovery": "zero",
            "scope": "all",
            "bn_statistics": "average",
        },
    }

    @property
    def statistics(self) -> Statistics:
        """Averaged, or recalibrated for the new global net in a phase of their own."""
        return self.bn_statistics

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

    def acts_after(self, epoch: int) -> bool:
        """Only the first epoch is dense."""
        return epoch == 1

    def after_epoch(self, epoch: int, local: LocalModel, work: Work) -> LocalModel:
        """After the dense epoch, fuse (Eq. 1, 2), then prune (Algorithm 1)."""
        alpha = fusion_factor(work.round_num, self.alpha_0, self.alpha_min, self.epsilon)
        parameters = local.submodel.graph.parameters
        fused = fuse(work.model.weights, local.weights, alpha, parameters=parameters)
        kept = self.prune(LocalModel(fused, local.submodel), work.device.rho)
        return LocalModel(kept.slice(fused), kept)

    def aggregator(self, server: ServerState) -> Aggregator:
        """Recover what was pruned from the last global model, then average (Eq. 6, 7)."""
        return RecoveredMean(server.weights, self.recovery)
