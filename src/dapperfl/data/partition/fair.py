"""The paper's protocol without its two accidents."""

from dapperfl.data.benchmark import Benchmark
from dapperfl.data.partition.fleet import Fleet, Shares
from dapperfl.data.partition.homes import any_picture, choose_homes, deal_at_home


def fair(benchmark: Benchmark, fleet: Fleet) -> Shares:
    """Split as `paper`, but shuffle the levels and mirror only what keeps its label.

    The paper's levels go by device index, and its last devices are always the same domains, so
    that the last domain's only sure device is always the weakest.
    """
    homes = choose_homes(benchmark, fleet)
    held = deal_at_home(benchmark, homes, any_picture(benchmark, fleet))
    return Shares(homes, fleet.shuffled_levels(), held, flip=benchmark.flip)
