"""Whether devices that do not take part, and rounds that are over, cost anything.

The same number of clients is drawn from a hundred devices and from ten thousand that share their
pictures. Round times are compared in turns in one process, memory in a process for each fleet.
MOON's clients keep a model each, of which fewer are held in memory than take part in a round, so
that both fleets use the disk; what the disk costs is a row of its own. MOON's contrast is off,
since it would make later rounds dearer.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.measure import Options, Row, as_much, at_most, in_child, medians, seconds_of
from benchmarks.rows.memory import CLEAR, status_bytes
from benchmarks.synthetic import CLASSES, shared_federation
from dapperfl import nets
from dapperfl.methods import load
from dapperfl.runtime.memory import LIMIT
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.simulator import Simulator

METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "moon": {"mu": 0.0}}
FLAT = 1.2  # "flat", with room for the noise of a shared machine
SIZE, EACH = 8, 4
HELD = 2**18  # bytes of what clients remember that stay in memory; the rest goes to disk
CHILD = "benchmarks.rows.scale"


def simulator(method: str, devices: int, cohort: int, rounds: int, held: int = HELD) -> Simulator:
    """Build a fleet of which so many devices are drawn each round."""
    torch.manual_seed(0)
    return Simulator(
        method=load(method)(**METHODS[method]),
        net=nets.build("convnet", num_classes=len(CLASSES), width=4),
        federation=shared_federation(devices, EACH, SIZE),
        train=TrainSettings(epochs=1, batch_size=EACH),
        rounds=rounds,
        participation=cohort / devices,
        memory_limit=held,
        threads=1,  # nets this small do not gain from more, and are steadier
    )


def watched(method: str, devices: int, cohort: int, rounds: int) -> dict[str, list[float]]:
    """Run rounds; return the seconds each took and the megabytes held after it."""
    records = simulator(method, devices, cohort, rounds).rounds()
    seen: dict[str, list[float]] = {"seconds": [], "megabytes": []}
    for _ in range(rounds):
        seen["seconds"].append(seconds_of(lambda: next(records)))
        seen["megabytes"].append(status_bytes("VmRSS") / 1e6)
    return seen


def next_round(
    method: str, devices: int, cohort: int, rounds: int, held: int = HELD
) -> Callable[[], object]:
    """Return a function that runs one more round."""
    records = simulator(method, devices, cohort, rounds, held).rounds()
    return lambda: next(records)


def measure(options: Options) -> Iterator[Row | str]:
    """Compare many devices with few, and late rounds with early ones."""
    few, many, rounds, repeats = (4, 40, 6, 2) if options.quick else (100, 10_000, 40, 9)
    for method in ("moon",) if options.quick else METHODS:
        what = f"CPU: {method}, {few} of {many:,} devices a round"
        work = [next_round(method, count, few, repeats + 1) for count in (many, few)]
        slow, fast = medians(work, repeats)
        name = f"{what}: seconds of a round, over a fleet of {few}"
        yield as_much(name, slow, "s", fast, at_most(FLAT))
        if method == "moon":
            work = [next_round(method, many, few, repeats + 1, held) for held in (HELD, LIMIT)]
            on_disk, in_memory = medians(work, repeats)
            name = f"{what}: seconds of a round with memories on disk, over in memory"
            yield as_much(name, on_disk, "s", in_memory)
        if not CLEAR.exists():
            yield "resident memory is measured on Linux only"
            continue
        large, small = (in_child(CHILD, method, n, few, rounds) for n in (many, few))
        name = f"{what}: memory after {rounds} rounds, over a fleet of {few}"
        last = large["megabytes"][-1]
        yield as_much(name, last, "MB", small["megabytes"][-1], at_most(FLAT))
        quarter = rounds // 4
        name = f"{what}: memory after round {rounds}, over round {quarter}"
        yield as_much(name, last, "MB", large["megabytes"][quarter - 1], at_most(FLAT))
        late, early = (
            statistics.median(part)
            for part in (large["seconds"][-quarter:], large["seconds"][1 : quarter + 1])
        )
        name = f"{what}: seconds of the last {quarter} rounds, over the first"
        yield as_much(name, late, "s", early, at_most(FLAT))


if __name__ == "__main__":
    seen = watched(sys.argv[1], *map(int, sys.argv[2:5]))
    print(json.dumps(seen))  # noqa: T201
