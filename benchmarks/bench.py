"""Measure what smaller nets buy: `make bench`.

Every row is a ratio of two things measured in this one run, since timings on shared machines mean
little by themselves. Rows go to the screen and to benchmarks/results/<machine>.json.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dapperfl import ChannelGraph, LocalModel, RecoveredMean, Submodel, __version__, l1_scores, nets
from dapperfl.core.cost import cost
from dapperfl.core.state import num_bytes


@dataclass(frozen=True)
class Row:
    """One measured ratio; without a target there is nothing to meet."""

    name: str
    value: float
    unit: str
    baseline: float
    ratio: float
    target: float | None = None
    met: bool | None = None


def median_seconds(work: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Time several things in turn, so that a noisy moment hits all of them."""
    for job in work:
        job()
    times: list[list[float]] = [[] for _ in work]
    for _ in range(repeats):
        for job, seen in zip(work, times, strict=True):
            began = time.perf_counter()
            job()
            seen.append(time.perf_counter() - began)
    return [statistics.median(seen) for seen in times]


def training_step(net: nn.Module, batch: int) -> Callable[[], object]:
    """Return one optimiser step on random images."""
    net = net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def submodel_of(net: nn.Module, rho: float, scope: str) -> Submodel:
    """Cut the strongest channels' submodel out of a net."""
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 32, 32))
    return l1_scores(graph, net.state_dict()).top(rho, scope=scope)  # type: ignore[arg-type]


def bench_steps(width: int, batch: int, repeats: int) -> list[Row]:
    """Compare a client's step at rho = .8 with the full net's."""
    net = nets.build("resnet10", num_classes=10, width=width)
    rows = []
    for scope in ("all", "inner"):
        small = submodel_of(net, 0.8, scope).shrink(net)
        slow, fast = median_seconds(
            [training_step(net, batch), training_step(small, batch)], repeats
        )
        name = f"step of ResNet10 width {width}, batch {batch}, rho .8, scope {scope}"
        rows.append(Row(name, 1e3 * fast, "ms", 1e3 * slow, slow / fast))
    return rows


def bench_fold(width: int, repeats: int) -> list[Row]:
    """Compare folding a client's update with a plain copy of the same bytes."""
    net = nets.build("resnet18", num_classes=10, width=width)
    state = net.state_dict()
    rows = []
    for scope in ("inner", "all"):
        submodel = submodel_of(net, 0.4, scope)
        small = submodel.slice(state)
        mean = RecoveredMean(state, "gated")
        fold, copy = median_seconds(
            [
                lambda mean=mean, small=small, sub=submodel: mean.add(LocalModel(small, sub), 1.0),
                lambda small=small: {name: tensor.clone() for name, tensor in small.items()},
            ],
            repeats,
        )
        speed = num_bytes(small) / fold / 1e9
        name = f"fold of a ResNet18 width {width} update, rho .4, scope {scope}"
        rows.append(Row(name, speed, "GB/s", num_bytes(small) / copy / 1e9, copy / fold))
    return rows


def bench_upload() -> list[Row]:
    """Compare a client's upload with the full net's; at most 1 - rho, plus one per cent."""
    net = nets.build("resnet10", num_classes=10, width=64)
    rows = []
    for scope in ("inner", "all"):
        for rho in (0.2, 0.4, 0.6, 0.8):
            submodel = submodel_of(net, rho, scope)
            small, full = cost(submodel).upload_bytes, cost(submodel.graph.full()).upload_bytes
            share, target = small / full, 1 - rho + 0.01
            name = f"upload of ResNet10 width 64, rho {rho}, scope {scope}"
            rows.append(Row(name, small, "bytes", full, share, target, share <= target))
    return rows


def main() -> None:
    """Run all benchmarks and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="narrow nets and few repeats")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    options = parser.parse_args()
    width, batch, repeats = (8, 8, 3) if options.quick else (64, 64, 7)
    rows = [*bench_steps(width, batch, repeats), *bench_fold(width, repeats), *bench_upload()]
    for row in rows:
        verdict = "" if row.met is None else ("  met" if row.met else "  MISSED")
        print(f"{row.name:62} {row.value:14.4g} {row.unit:6} ratio {row.ratio:6.3f}{verdict}")  # noqa: T201
    machine = f"{platform.machine()}-{torch.get_num_threads()}-threads"
    path = options.out or Path(__file__).parent / "results" / f"{machine}.json"
    facts = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "make bench" if not options.quick else "bench.py --quick",
        "dapperfl": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "rows": [asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"written to {path}")  # noqa: T201


if __name__ == "__main__":
    main()
