"""Federated learning on devices that differ in power and in data.

>>> import torch
>>> from dapperfl import ChannelGraph, LocalModel, RecoveredMean, l1_scores
>>> net = torch.nn.Sequential(
...     torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1152, 10)
... )
>>> graph = ChannelGraph.trace(net, torch.zeros(1, 3, 8, 8))  # which axes are the same channels
>>> kept = l1_scores(graph, net.state_dict()).top(0.4)  # a device that can hold 60 % of it
>>> small = kept.shrink(net)  # an ordinary, physically smaller module; train it as you like
>>> sum(p.numel() for p in small.parameters()), sum(p.numel() for p in net.parameters())
(6218, 12426)
>>> mean = RecoveredMean(net.state_dict())  # Eq. 6 and 7, one client at a time
>>> mean.add(LocalModel(small.state_dict(), kept), weight=100)
>>> incompatible = net.load_state_dict(mean.result())

A whole run is `dapperfl run` in a shell, or in Python a `Simulator` and a loop over its `rounds()`;
`load_run` gives the trained net back, and `calibrate` fits it to the pictures of one device.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dapperfl.core.aggregation import CoverageMean, RecoveredMean
    from dapperfl.core.channels import ChannelGraph
    from dapperfl.core.cost import keep_for_budget
    from dapperfl.core.fusion import fuse, fusion_factor
    from dapperfl.core.losses import feature_norm
    from dapperfl.core.messages import LocalModel
    from dapperfl.core.scores import l1_scores
    from dapperfl.core.submodel import Submodel
    from dapperfl.data.pictures.reading import read_pictures
    from dapperfl.lab.loading import load_run
    from dapperfl.runtime.calibration import calibrate
    from dapperfl.sim.simulator import Simulator

__all__ = [
    "ChannelGraph",
    "CoverageMean",
    "LocalModel",
    "RecoveredMean",
    "Simulator",
    "Submodel",
    "__version__",
    "calibrate",
    "feature_norm",
    "fuse",
    "fusion_factor",
    "keep_for_budget",
    "l1_scores",
    "load_run",
    "read_pictures",
]

__version__ = "0.1.0"

# Names are imported when first used: `dapperfl --help` need not wait for torch.
_HOMES = {
    "ChannelGraph": "core.channels",
    "CoverageMean": "core.aggregation",
    "LocalModel": "core.messages",
    "RecoveredMean": "core.aggregation",
    "Simulator": "sim.simulator",
    "Submodel": "core.submodel",
    "calibrate": "runtime.calibration",
    "feature_norm": "core.losses",
    "fuse": "core.fusion",
    "fusion_factor": "core.fusion",
    "keep_for_budget": "core.cost",
    "l1_scores": "core.scores",
    "load_run": "lab.loading",
    "read_pictures": "data.pictures.reading",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
