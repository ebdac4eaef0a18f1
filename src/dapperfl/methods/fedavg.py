"""FedAvg: full nets everywhere, averaged by sample counts (McMahan et al., 2017)."""

from dataclasses import dataclass

from dapperfl.methods.base import MeasuringMethod


@dataclass(frozen=True, kw_only=True)
class FedAvg(MeasuringMethod):
    """The reference for all others: every default of the base class."""
