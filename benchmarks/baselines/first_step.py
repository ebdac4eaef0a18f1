"""DapperFL that says when it begins to train: `--set method=benchmarks.baselines.first_step:Told`.

The file named by DAPPERFL_BENCH_MARK appears when the first step begins, in whichever process.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dapperfl.core.messages import Work
from dapperfl.core.net import Batch, Net
from dapperfl.methods.dapperfl import DapperFL


@dataclass(frozen=True, kw_only=True)
class Told(DapperFL):
    """The demo's method; nothing it computes differs."""

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Leave the mark, then return the objective as always."""
        Path(os.environ["DAPPERFL_BENCH_MARK"]).touch()
        return super().loss(net, batch, work)
