"""No domains and no skew: what federated learning would be like if devices were all alike."""

import torch

from dapperfl.data.benchmark import Benchmark, Examples
from dapperfl.data.partition.fleet import Fleet, Shares
from dapperfl.data.partition.portions import cut, portions

MIXED = "mixed"  # the domain of a device that has pictures of all domains


def iid(benchmark: Benchmark, fleet: Fleet) -> Shares:
    """Let every device draw from all domains alike."""
    domains = benchmark.domains.values()
    pool = Examples(
        torch.cat([domain.train.images for domain in domains]),
        torch.cat([domain.train.labels for domain in domains]),
    )
    wanted = int(fleet.fraction * sum(domain.official_size for domain in domains) / len(domains))
    sizes = portions(MIXED, len(pool), wanted, fleet.devices)
    parts = cut(len(pool), sizes, fleet.rng("samples", MIXED))
    held = {index: pool.pick(part) for index, part in enumerate(parts)}
    return Shares([MIXED] * fleet.devices, fleet.levels(), held, flip=benchmark.flip)
