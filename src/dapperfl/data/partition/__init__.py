"""From a benchmark to a federation: which device holds which pictures, and how strong it is.

A protocol is one file of this folder. What it draws depends on the seed and on nothing else: not
on the method, the number of rounds or the engine.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dapperfl.core.messages import Device
from dapperfl.data.benchmark import Benchmark, Examples, Federation
from dapperfl.data.partition.dirichlet import dirichlet
from dapperfl.data.partition.fair import fair
from dapperfl.data.partition.fleet import Fleet, Shares
from dapperfl.data.partition.iid import iid
from dapperfl.data.partition.paper import paper
from dapperfl.data.partition.reserve import put_by
from dapperfl.data.partition.settings import PartitionSettings, ProtocolName
from dapperfl.data.partition.validation import set_aside
from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean

__all__ = ["PROTOCOLS", "PartitionSettings", "ProtocolName", "partition"]

log = logging.getLogger(__name__)

_NAMED = 10  # devices in a message

PROTOCOLS: Mapping[ProtocolName, Callable[[Benchmark, Fleet], Shares]] = {
    "paper": paper,
    "fair": fair,
    "dirichlet": dirichlet,
    "iid": iid,
}


def partition(
    benchmark: Benchmark,
    settings: PartitionSettings,
    *,
    devices: int,
    rhos: Sequence[float],
    seed: int,
) -> Federation:
    """Give each device its pictures and its level.

    Args:
        benchmark: the pictures.
        settings: how they are spread.
        devices: how many there are.
        rhos: the levels, as shares of the parameters to remove; they are dealt out in turn.
        seed: of the run.

    Raises:
        ConfigError: a value is out of its range, or does not suit the benchmark.
    """
    fraction = benchmark.fraction if settings.fraction is None else settings.fraction
    fleet = Fleet(devices, tuple(rhos), seed, fraction, settings)
    seen = _seen(benchmark, settings.held_out)
    open_to_all, reserve = put_by(seen, fleet)
    shares = PROTOCOLS[settings.protocol](open_to_all, fleet)
    train, validation = _with_validation(shares.held, fleet)
    _tell_bare(shares.homes, validation, fleet)
    _tell_lonely(train)
    return Federation(
        devices=tuple(
            Device(index, home, rho, len(train[index]))
            for index, (home, rho) in enumerate(zip(shares.homes, shares.levels, strict=True))
        ),
        train=train,
        test={name: domain.test for name, domain in benchmark.domains.items()},
        classes=benchmark.classes,
        mean=benchmark.mean,
        std=benchmark.std,
        flip=shares.flip,
        pad=benchmark.pad,
        validation=validation,
        reserve=reserve,
        available=sum(len(domain.train) for domain in seen.domains.values()),
    )


def _seen(benchmark: Benchmark, held_out: str | None) -> Benchmark:
    """Return the benchmark without the domain that no device may have."""
    if held_out is None:
        return benchmark
    if held_out not in benchmark.domains:
        raise ConfigError(
            f'data.held_out = "{held_out}" is no domain of {benchmark.name}'
            f"{did_you_mean(held_out, benchmark.domains)}"
        )
    rest = {name: domain for name, domain in benchmark.domains.items() if name != held_out}
    if not rest:
        raise ConfigError(
            f'data.held_out = "{held_out}" is the only domain of {benchmark.name}, so that no '
            "device would have any; leave it out"
        )
    return replace(benchmark, domains=rest)


def _with_validation(
    held: Mapping[int, Examples], fleet: Fleet
) -> tuple[dict[int, Examples], dict[int, Examples]]:
    """Return what each device trains on and what it keeps aside, in device order."""
    share = fleet.settings.validation
    if share == 0:
        return {index: held[index] for index in range(fleet.devices)}, {}
    parts = {
        index: set_aside(held[index], share, fleet.rng("validation", index))
        for index in range(fleet.devices)
    }
    train = {index: kept for index, (kept, _) in parts.items()}
    return train, {index: aside for index, (_, aside) in parts.items()}


def _tell_bare(homes: Sequence[str], validation: Mapping[int, Examples], fleet: Fleet) -> None:
    """Name devices, and whole domains, of which no picture could be kept aside."""
    bare = [index for index, aside in validation.items() if len(aside) == 0]
    if not bare:
        return
    known = {homes[index] for index in validation if index not in bare}
    lost = list(dict.fromkeys(homes[index] for index in bare if homes[index] not in known))
    domains = f"; so no accuracy kept aside is of {', '.join(lost)}" if lost else ""
    log.warning(
        "data.validation = %g leaves nothing aside on devices with too few pictures: %s%s",
        *(fleet.settings.validation, _some(bare), domains),
    )


def _tell_lonely(train: Mapping[int, Examples]) -> None:
    """Name devices whose only picture many a net cannot be trained with."""
    lonely = [index for index, examples in train.items() if len(examples) == 1]
    if lonely:
        log.warning(
            "a single picture to train on, where batch norms may need two: devices %s; give them "
            "more (data.fraction), or have fewer devices",
            _some(lonely),
        )


def _some(devices: Sequence[int]) -> str:
    more = f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else ""
    return ", ".join(map(str, devices[:_NAMED])) + more
