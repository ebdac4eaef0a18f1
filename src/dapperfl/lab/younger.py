"""Settings that are younger than some runs and published rows, and what these were without them.

A run folder that lacks a setting was computed as if it had the value here, whatever the default is
today; and a row keeps its id when the package learns something new.
"""

from collections.abc import Mapping
from typing import Any

_OF_ALL: Mapping[str, Any] = {
    "data.root": "none",
    "data.reserve": 0,
    "data.blind": False,
    "method.dense": "full",
    "method.dense_batches": 2,
    "method.weight_power": 1.0,
    "method.averaging": 0.0,
    "method.restyle": 0.0,
    "method.restyle_rounds": 0,
    "method.recalibrate_rounds": 0,
    "train.shift": 0.0,
}
_STATISTICS = {"method.bn_statistics": "average"}  # of methods that did not have it
_ONCE_WITHOUT = [
    "fedavg",
    "fedavg_capable",
    "fedavg_small",
    "feddrop",
    "fedmp",
    "fedprox",
    "fedsr",
    "fpl",
    "moon",
]


def without(method: str) -> Mapping[str, Any]:
    """Return the values that change nothing, by key, of settings that came after a method."""
    return {**_OF_ALL, **(_STATISTICS if method in _ONCE_WITHOUT else {})}
