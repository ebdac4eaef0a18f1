"""From a config to the things it names: pictures, devices, net, simulator.

Simulation and deployment both start here, so that a config means the same to both.
"""

import os
from pathlib import Path

import torch
from torch import nn

from dapperfl import nets
from dapperfl.core.rng import derive_seed
from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark, Federation
from dapperfl.data.partition import partition
from dapperfl.lab.config import Config, DataConfig
from dapperfl.sim.simulator import Simulator


def load_benchmark(data: DataConfig) -> Benchmark:
    """Load the pictures, from this package or from a user's `package.module:load`."""
    root = Path(data.root).expanduser() if data.root else None
    return benchmarks.load(data.benchmark, root, **data.options)


def load_federation(config: Config) -> Federation:
    """Give every device its domain, its level and its samples."""
    return partition(
        load_benchmark(config.data),
        config.data,
        devices=config.fleet.devices,
        rhos=config.fleet.rhos,
        seed=config.seed,
    )


def build_net(config: Config, *, num_classes: int, in_channels: int) -> nn.Module:
    """Build the net with weights that depend on the run's seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "net"))
        return nets.build(
            config.net.name,
            num_classes=num_classes,
            in_channels=in_channels,
            width=config.net.width,
        )


def compute_exactly() -> None:
    """Make CUDA compute in true float32, and the same way every time.

    By default convolutions run in TF32 and some kernels add up in any order, so that a resumed run
    would end somewhere else. The switches are torch's and hold for the whole process.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)


def build(config: Config) -> Simulator:
    """Turn a config into a simulator that is ready to run."""
    device = config.engine.torch_device()
    if device != "cpu":
        compute_exactly()
    federation = load_federation(config)
    images = next(iter(federation.test.values())).images  # (n, channels, height, width)
    net = build_net(config, num_classes=len(federation.classes), in_channels=int(images.shape[1]))
    return Simulator(
        method=config.method.build(),
        net=net,
        federation=federation,
        train=config.train,
        seed=config.seed,
        rounds=config.rounds,
        participation=config.fleet.participation,
        device=device,
    )
