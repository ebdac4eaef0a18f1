"""The paper's protocol, as its published code does it."""

from dapperfl.data.benchmark import Benchmark
from dapperfl.data.partition.fleet import Fleet, Shares
from dapperfl.data.partition.homes import any_picture, choose_homes, deal_at_home


def paper(benchmark: Benchmark, fleet: Fleet) -> Shares:
    """Split as the paper's code does: one domain per device, levels in turn, mirrored pictures."""
    homes = choose_homes(benchmark, fleet)
    held = deal_at_home(benchmark, homes, any_picture(benchmark, fleet))
    return Shares(homes, fleet.levels(), held, flip=True)
