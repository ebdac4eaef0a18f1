"""What a protocol is asked for, and what it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Examples
from dapperfl.data.partition.settings import PartitionSettings
from dapperfl.errors import ConfigError


@dataclass(frozen=True)
class Fleet:
    """What is asked for: how many devices, their levels, and how much data each wants."""

    devices: int
    rhos: tuple[float, ...]
    seed: int
    fraction: float  # of the official size of a domain, for each device
    settings: PartitionSettings

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ConfigError(f"fleet.devices = {self.devices}: there must be at least one device")
        if not self.rhos:
            raise ConfigError("fleet.rhos is empty: give at least one level, such as [0.0]")
        for rho in self.rhos:
            if not 0 <= rho < 1:
                raise ConfigError(
                    f"fleet.rhos holds {rho}: a level is the share of parameters removed, "
                    "at least 0 and below 1"
                )

    def rng(self, *path: int | str) -> torch.Generator:
        """Return the generator for one purpose of the partition."""
        return generator(self.seed, "partition", *path)

    def levels(self) -> list[float]:
        """Return each device's rho: the levels in turn, by device index."""
        return [self.rhos[index % len(self.rhos)] for index in range(self.devices)]

    def shuffled_levels(self) -> list[float]:
        """Return the same levels in an order drawn by the seed."""
        order = torch.randperm(self.devices, generator=self.rng("levels")).tolist()
        levels = self.levels()
        return [levels[index] for index in order]


@dataclass(frozen=True)
class Shares:
    """What a protocol decides: by device index, a home, a level and the pictures held."""

    homes: Sequence[str]
    levels: Sequence[float]
    held: Mapping[int, Examples]
    flip: bool  # whether training mirrors pictures
