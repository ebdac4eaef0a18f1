"""Training pictures that no device gets, to choose between methods without looking at the test."""

import logging
from dataclasses import replace

from dapperfl.data.benchmark import Benchmark, Examples
from dapperfl.data.partition.fleet import Fleet
from dapperfl.data.partition.validation import set_aside

log = logging.getLogger(__name__)

MOST = 0.25  # of a domain: devices draw from the rest


def put_by(benchmark: Benchmark, fleet: Fleet) -> tuple[Benchmark, dict[str, Examples]]:
    """Return the benchmark that devices draw from, and what was taken out of each domain.

    A device's share refers to the official size of its domain, so it does not become smaller.
    """
    wanted = fleet.settings.reserve
    if wanted == 0:
        return benchmark, {}
    domains, reserve = {}, {}
    for name, domain in benchmark.domains.items():
        share = min(wanted / max(len(domain.train), 1), MOST)
        kept, reserve[name] = set_aside(domain.train, share, fleet.rng("reserve", name))
        domains[name] = replace(domain, train=kept)
    if bare := [name for name, aside in reserve.items() if len(aside) == 0]:
        log.warning(
            "data.reserve = %d leaves nothing aside of domains with too few pictures: %s",
            *(wanted, ", ".join(bare)),
        )
    return replace(benchmark, domains=domains), reserve
