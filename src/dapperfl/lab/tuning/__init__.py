"""Hyper-parameters chosen by search, on pictures that the devices keep aside.

`tune` tries a config's own values first, then others within a space, and never looks at a test set.
Optuna proposes what to try; this folder alone imports it.
"""

from dapperfl.lab.tuning.search import TuneResult, tune
from dapperfl.lab.tuning.trials import Progress, Trial

__all__ = ["Progress", "Trial", "TuneResult", "tune"]
