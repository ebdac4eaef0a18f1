"""Which domain each device lives in, and how a domain's pictures go to its devices."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.data.partition.fleet import Fleet
from dapperfl.data.partition.labels import by_class, repair
from dapperfl.data.partition.portions import cut, portions
from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean

# From a domain, its name and the devices that live there to the training pictures of each device.
Deal = Callable[[str, Domain, Sequence[int]], list[Tensor]]


def choose_homes(benchmark: Benchmark, fleet: Fleet) -> list[str]:
    """Say which domain each device lives in: as allocated by hand, or drawn."""
    if fleet.settings.allocation is not None:
        return _allocated(benchmark, fleet, fleet.settings.allocation)
    return _drawn(benchmark, fleet)


def _allocated(benchmark: Benchmark, fleet: Fleet, allocation: Mapping[str, int]) -> list[str]:
    for name in allocation:
        if name == fleet.settings.held_out:
            raise ConfigError(
                f'data.allocation names the domain "{name}", but data.held_out says that no device '
                "has it; leave one of them out"
            )
        if name not in benchmark.domains:
            near = did_you_mean(name, benchmark.domains)
            raise ConfigError(f'data.allocation names the unknown domain "{name}"{near}')
    total = sum(allocation.values())
    if total != fleet.devices:
        raise ConfigError(
            f"data.allocation gives {total} devices, but fleet.devices = {fleet.devices}; "
            "make the two equal"
        )
    return [name for name, count in allocation.items() for _ in range(count)]


def _drawn(benchmark: Benchmark, fleet: Fleet) -> list[str]:
    """Draw a domain for each device; the last devices are the domains in order, so none is bare."""
    domains = list(benchmark.domains)
    free = fleet.devices - len(domains)
    if free < 0:
        raise ConfigError(
            f"fleet.devices = {fleet.devices}, but {benchmark.name} has {len(domains)} domains and "
            f"each needs a device; use at least {len(domains)} devices, a data.allocation, or "
            'data.protocol = "iid"'
        )
    drawn = torch.randint(len(domains), (free,), generator=fleet.rng("domains")).tolist()
    return [domains[index] for index in drawn] + domains


def deal_at_home(benchmark: Benchmark, homes: Sequence[str], deal: Deal) -> dict[int, Examples]:
    """Give every device pictures of its own domain."""
    held: dict[int, Examples] = {}
    for name, domain in benchmark.domains.items():
        residents = [index for index, home in enumerate(homes) if home == name]
        if residents:
            parts = deal(name, domain, residents)
            picked = [domain.train.pick(part) for part in parts]
            held.update(zip(residents, picked, strict=True))
    return held


def any_picture(benchmark: Benchmark, fleet: Fleet) -> Deal:
    """Deal pictures of any label, none twice; absent labels are repaired where that is asked."""

    def deal(name: str, domain: Domain, residents: Sequence[int]) -> list[Tensor]:
        wanted = int(fleet.fraction * domain.official_size)
        sizes = portions(name, len(domain.train), wanted, len(residents))
        parts = cut(len(domain.train), sizes, fleet.rng("samples", name))
        if not benchmark.repair_labels:
            return parts
        labels = domain.train.labels.tolist()
        places = by_class(labels)
        return [
            repair(part, labels, places, fleet.rng("repair", index))
            for index, part in zip(residents, parts, strict=True)
        ]

    return deal
