"""FedAvg among the capable: only devices that can train the full net take part."""

from collections.abc import Sequence
from dataclasses import dataclass

from dapperfl.core.messages import Assignment, Device, LocalModel, ServerState
from dapperfl.core.rng import Dice
from dapperfl.errors import ConfigError
from dapperfl.methods.base import MeasuringMethod


@dataclass(frozen=True, kw_only=True)
class FedAvgCapable(MeasuringMethod):
    """What one gets without any heterogeneous method: weak devices drop out with their data."""

    def init(self, model: LocalModel, fleet: Sequence[Device]) -> ServerState:
        """Refuse a fleet without a capable device."""
        if all(device.rho > 0 for device in fleet):
            raise ConfigError(
                "no device can train the full net; give fleet.rhos a level 0, or let a device with "
                "pictures of its own join with --rho 0"
            )
        return super().init(model, fleet)

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Leave weak devices out."""
        return None if device.rho > 0 else super().assign(server, device, epochs, dice)
