"""From a benchmark to a federation: which device holds which pictures, and how strong it is.

A protocol is one function of this module. What it draws depends on the seed and on nothing else:
not on the method, the number of rounds or the engine.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dapperfl.core.messages import Device
from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Benchmark, Examples, Federation
from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean

log = logging.getLogger(__name__)

MIXED = "mixed"  # the domain of a device that has pictures of all domains


@dataclass(frozen=True)
class Fleet:
    """What is asked for: how many devices, their levels, and how much data each wants."""

    devices: int
    rhos: tuple[float, ...]
    fraction: float  # of the official size of a domain, for each device
    seed: int

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
        if not 0 < self.fraction <= 1:
            raise ConfigError(
                f"data.fraction = {self.fraction}: choose a share above 0 and at most 1"
            )

    def rng(self, *path: int | str) -> torch.Generator:
        """Return the generator for one purpose of the partition."""
        return generator(self.seed, "partition", *path)

    def levels(self) -> list[float]:
        """Return each device's rho: the levels in turn, by device index."""
        return [self.rhos[index % len(self.rhos)] for index in range(self.devices)]


def partition(
    benchmark: Benchmark,
    *,
    devices: int,
    rhos: Sequence[float],
    protocol: str,
    seed: int,
    fraction: float | None = None,
) -> Federation:
    """Give each device its pictures and its level.

    Args:
        benchmark: the pictures.
        devices: how many there are.
        rhos: the levels, as shares of the parameters to remove; they are dealt out in turn.
        protocol: one of `PROTOCOLS`.
        seed: of the run.
        fraction: of its domain's official size for each device; None for the benchmark's own.

    Raises:
        ConfigError: a value is out of its range, or does not suit the benchmark.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f'unknown data.protocol "{protocol}"{did_you_mean(protocol, PROTOCOLS)}')
    share = benchmark.fraction if fraction is None else fraction
    return PROTOCOLS[protocol](benchmark, Fleet(devices, tuple(rhos), share, seed))


def paper(benchmark: Benchmark, fleet: Fleet) -> Federation:
    """Split as the paper's code does: one domain per device, levels in turn, mirrored pictures."""
    homes = _homes(benchmark, fleet)
    held = _by_domain(benchmark, fleet, homes)
    return _federation(benchmark, homes, fleet.levels(), held, flip=True)


def fair(benchmark: Benchmark, fleet: Fleet) -> Federation:
    """Split as `paper`, but shuffle the levels and mirror only what keeps its label.

    The paper's levels go by device index, and its last devices are always the same domains, so
    that the last domain's only sure device is always the weakest.
    """
    homes = _homes(benchmark, fleet)
    order = torch.randperm(fleet.devices, generator=fleet.rng("levels")).tolist()
    levels = [fleet.levels()[index] for index in order]
    held = _by_domain(benchmark, fleet, homes)
    return _federation(benchmark, homes, levels, held, flip=benchmark.flip)


def iid(benchmark: Benchmark, fleet: Fleet) -> Federation:
    """Let every device draw from all domains alike."""
    domains = benchmark.domains.values()
    pool = Examples(
        torch.cat([domain.train.images for domain in domains]),
        torch.cat([domain.train.labels for domain in domains]),
    )
    wanted = int(fleet.fraction * sum(domain.official_size for domain in domains) / len(domains))
    sizes = _sizes(MIXED, len(pool), wanted, fleet.devices)
    held = dict(enumerate(_deal(pool, sizes, fleet.rng("samples", MIXED))))
    homes = [MIXED] * fleet.devices
    return _federation(benchmark, homes, fleet.levels(), held, flip=benchmark.flip)


Protocol = Callable[[Benchmark, Fleet], Federation]
PROTOCOLS: Mapping[str, Protocol] = {rule.__name__: rule for rule in (paper, fair, iid)}


def _homes(benchmark: Benchmark, fleet: Fleet) -> list[str]:
    """Draw a domain for each device; the last devices are the domains in order, so none is bare."""
    domains = list(benchmark.domains)
    free = fleet.devices - len(domains)
    if free < 0:
        raise ConfigError(
            f"fleet.devices = {fleet.devices}, but {benchmark.name} has {len(domains)} domains and "
            f"each needs a device; use at least {len(domains)} devices, or data.protocol = "
            f'"{iid.__name__}"'
        )
    drawn = torch.randint(len(domains), (free,), generator=fleet.rng("domains")).tolist()
    return [domains[index] for index in drawn] + domains


def _by_domain(benchmark: Benchmark, fleet: Fleet, homes: Sequence[str]) -> dict[int, Examples]:
    """Deal each domain's pictures out to its devices, none twice."""
    held: dict[int, Examples] = {}
    for name, domain in benchmark.domains.items():
        residents = [index for index, home in enumerate(homes) if home == name]
        wanted = int(fleet.fraction * domain.official_size)
        sizes = _sizes(name, len(domain.train), wanted, len(residents))
        parts = _deal(domain.train, sizes, fleet.rng("samples", name))
        held.update(zip(residents, parts, strict=True))
    return held


def _deal(examples: Examples, sizes: list[int], rng: torch.Generator) -> list[Examples]:
    """Shuffle examples and cut them into parts of these sizes, none in two parts."""
    order = torch.randperm(len(examples), generator=rng)[: sum(sizes)]
    return [examples.pick(part) for part in torch.split(order, sizes)]


def _sizes(domain: str, available: int, wanted: int, devices: int) -> list[int]:
    """Say how many pictures each device of a domain gets.

    If there are too few, the first devices get what they want and the last ones share the rest
    evenly: at least one full portion among them, so that none is left with next to nothing.
    """
    if wanted < 1:
        raise ConfigError(
            f"data.fraction gives a device of domain {domain} no picture at all; raise it"
        )
    if devices * wanted <= available:
        return [wanted] * devices
    full = max(available // wanted - 1, 0)
    rest, sharing = available - full * wanted, devices - full
    if rest < sharing:
        raise ConfigError(
            f"domain {domain} has {available} pictures for {devices} devices, so that some would "
            "have none; use fewer fleet.devices, or a smaller data.fraction"
        )
    sizes = [rest // sharing + (place < rest % sharing) for place in range(sharing)]
    log.warning(
        "domain %s has %d pictures, too few for %d devices with %d each: its last %d share %d",
        *(domain, available, devices, wanted, sharing, rest),
    )
    return [wanted] * full + sizes


def _federation(
    benchmark: Benchmark,
    homes: Sequence[str],
    levels: Sequence[float],
    held: Mapping[int, Examples],
    *,
    flip: bool,
) -> Federation:
    """Put the devices and their pictures together, in device order."""
    devices = tuple(
        Device(index, home, rho, len(held[index]))
        for index, (home, rho) in enumerate(zip(homes, levels, strict=True))
    )
    return Federation(
        devices=devices,
        train={device.id: held[device.id] for device in devices},
        test={name: domain.test for name, domain in benchmark.domains.items()},
        classes=benchmark.classes,
        mean=benchmark.mean,
        std=benchmark.std,
        flip=flip,
        pad=benchmark.pad,
    )
