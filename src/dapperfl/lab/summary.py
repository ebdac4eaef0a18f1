"""`summary.json`: the results of a run, computed from its rounds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from dapperfl.core.cost import Cost
from dapperfl.core.messages import ClientCost, Device
from dapperfl.lab.config import Config
from dapperfl.lab.records import RoundLine
from dapperfl.lab.versions import versions
from dapperfl.sim.simulator import LevelCost

SCHEMA = 1


def summarise(
    config: Config,
    lines: Sequence[RoundLine],
    *,
    spent: ClientCost,
    dense: Cost,
    levels: Iterable[tuple[LevelCost, Mapping[str, float]]],
    devices: Iterable[Device],
    calibrated: Mapping[int, float],
) -> dict[str, Any]:
    """Return the results of a finished run; accuracies in percent.

    `spent` is what all clients spent in all rounds. A level comes with the accuracy of its compact
    model, cut from the final global one; `calibrated` has some devices' accuracy on their own
    domain after calibration, by device id.
    """
    known, fleet = list(levels), list(devices)
    return {
        "schema_version": SCHEMA,
        "method": config.method.name,
        "preset": config.method.preset,
        "method_fields": dict(config.method.fields),
        "benchmark": config.data.benchmark,
        "protocol": config.data.protocol,
        "blind": config.data.blind,
        "net": asdict(config.net),
        "seed": config.seed,
        "rounds": config.rounds,
        "global_accuracy": marks([line.mean for line in lines]),
        "domain_accuracy": {
            domain: marks([line.accuracy[domain] for line in lines])
            for domain in lines[-1].accuracy
        },
        "validation_accuracy": {
            domain: marks([line.validation[domain] for line in lines])
            for domain in lines[-1].validation
        },
        "dense": asdict(dense),
        "levels": [
            asdict(level) | {"accuracy": dict(accuracy), "mean_accuracy": _mean(accuracy)}
            for level, accuracy in known
        ],
        "at_home": at_home({level.rho: accuracy for level, accuracy in known}, fleet),
        "at_home_calibrated": fmean(calibrated.values()) if calibrated else None,
        "devices": [asdict(device) for device in fleet],
        "seconds": sum(line.seconds for line in lines),
        "costs": asdict(spent),
        "left_out": sum(len(line.left_out) for line in lines),
        "versions": versions(),
    }


def _mean(accuracy: Mapping[str, float]) -> float | None:
    """Return the mean over domains; None where there was nothing to measure it on."""
    return fmean(accuracy.values()) if accuracy else None


def at_home(levels: Mapping[float, Mapping[str, float]], fleet: Iterable[Device]) -> float | None:
    """Return how good the compact model of a device is on its own domain, mean over devices.

    Args:
        levels: The accuracy of each level's compact model by domain.
        fleet: Who takes which of them home.
    """
    found = [levels[d.rho][d.domain] for d in fleet if d.domain in levels.get(d.rho, {})]
    return fmean(found) if found else None


def marks(accuracies: Sequence[float]) -> dict[str, float]:
    """Return the best round's, the last round's and the last five rounds' mean accuracy.

    Of the mean over domains, `best` is what the paper calls global accuracy; of one domain it is
    that domain's own best round, as in the paper's domain columns.
    """
    return {
        "best": max(accuracies),
        "last": accuracies[-1],
        "last5": fmean(accuracies[-5:]),
    }


def total_costs(lines: Iterable[RoundLine]) -> ClientCost:
    """Add up what all clients spent; of sizes, take the largest."""
    return sum((cost for line in lines for cost in line.costs.values()), ClientCost())
