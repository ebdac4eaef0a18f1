"""FedProx: stay near the global weights; weak devices do fewer epochs (Li et al., 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from dapperfl.core.messages import Assignment, Device, ServerState, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import Dice
from dapperfl.methods.base import MeasuringMethod
from dapperfl.settings import Range, setting


@dataclass(frozen=True, kw_only=True)
class FedProx(MeasuringMethod):
    """FedAvg with a proximal term; a device at level rho runs a share 1 - rho of the epochs."""

    mu: float = setting(
        0.1, "weight of the proximal term, mu / 2 times the squared drift", Range(0)
    )
    epochs: Literal["level", "all"] = setting(
        "level", "local epochs: fewer for weak devices, or the same for all"
    )

    # The benchmark code of this family multiplies mu = .1 by a fixed .01.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "family": {"mu": 0.001}}

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Give a device the epochs its level can run, at least one."""
        share = 1 - device.rho if self.epochs == "level" else 1.0
        return super().assign(server, device, max(1, round(share * epochs)), dice)

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return cross-entropy plus mu / 2 ‖w - W‖² over all trainable parameters."""
        loss = super().loss(net, batch, work)
        if self.mu == 0:
            return loss
        start = work.model.weights
        drift = sum((p - start[name]).square().sum() for name, p in net.named_parameters())
        return loss + self.mu / 2 * drift
