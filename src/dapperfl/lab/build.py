"""From a config to the things it names: pictures, devices, net, simulator.

Simulation and deployment both start here, so that a config means the same to both.
"""

from pathlib import Path

import torch
from torch import nn

from dapperfl import nets
from dapperfl.core.rng import derive_seed, foreign_seeded
from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark, Federation
from dapperfl.data.checking import check_pictures
from dapperfl.data.partition import partition
from dapperfl.lab.config import Config, DataConfig
from dapperfl.lab.engine import choose
from dapperfl.runtime.precision import set_arithmetic
from dapperfl.sim.holdings import blinded
from dapperfl.sim.loop import MakeRunner
from dapperfl.sim.simulator import Simulator


def load_benchmark(data: DataConfig) -> Benchmark:
    """Load the pictures, from this package or from a user's `package.module:load`."""
    return benchmarks.load(data.benchmark, _root(data), **data.options)


def files_mark(data: DataConfig) -> str | None:
    """Name the files of the pictures as they are now, unread; None if none can be told."""
    return benchmarks.files_mark(data.benchmark, _root(data))


def _root(data: DataConfig) -> Path | None:
    return Path(data.root).expanduser() if data.root else None


def load_federation(config: Config) -> Federation:
    """Give every device its domain, its level and its samples."""
    federation = partition(
        load_benchmark(config.data),
        config.data,
        devices=config.fleet.devices,
        rhos=config.fleet.rhos,
        seed=config.seed,
    )
    return blinded(federation) if config.data.blind else federation


def build_net(config: Config, *, num_classes: int, in_channels: int) -> nn.Module:
    """Build the net with weights that depend on the run's seed alone, whoever draws them."""
    seed = derive_seed(config.seed, "net")
    with torch.random.fork_rng(devices=[]), foreign_seeded(seed):
        torch.manual_seed(seed)
        return nets.build(
            config.net.name,
            num_classes=num_classes,
            in_channels=in_channels,
            width=config.net.width,
        )


def build(config: Config) -> Simulator:
    """Turn a config into a simulator that is ready to run."""
    return build_on(config, load_federation(config))


def build_on(
    config: Config,
    federation: Federation,
    *,
    min_replies: int = 1,
    runner: MakeRunner | None = None,
) -> Simulator:
    """Build the simulator on a federation of one's own making, maybe with another runner."""
    check_pictures(federation)
    engine = choose(config.engine)
    if engine.device != "cpu":
        set_arithmetic(config.engine.precision, exact=config.engine.exact)
    channels = federation.shape[0]
    net = build_net(config, num_classes=len(federation.classes), in_channels=channels)
    return Simulator(
        method=config.method.build(),
        net=net,
        federation=federation,
        train=config.train,
        seed=config.seed,
        rounds=config.rounds,
        participation=config.fleet.participation,
        device=engine.device,
        runner=runner or engine.runner,
        threads=engine.threads,
        precision=config.engine.precision,
        memory_limit=config.engine.memory_limit_mb * 2**20,
        min_replies=min_replies,
    )
