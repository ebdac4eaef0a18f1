"""How much memory a server needs to fold any number of updates.

Each count is measured in a process of its own: its highest resident size while it folds, less the
size when the global model and the submodels stood ready. Before, memory that is free is given back
and the mark is set anew, so that nothing is hidden in it. An update is cut anew each time, as it
would come off a wire, and counts as well. malloc is told to give large blocks back at once: what it
hoards otherwise differs by more than a model from one process to the next, and has a row apart.
"""

import ctypes
import gc
import json
import re
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from benchmarks.measure import Options, Row, as_much, at_most, in_child
from benchmarks.rows.fold import LEVELS
from benchmarks.rows.steps import submodel_of
from dapperfl import LocalModel, RecoveredMean, nets
from dapperfl.core.channels import Scope
from dapperfl.core.state import num_bytes

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # bytes; larger blocks are given back when freed
WHAT = "peak memory of folding"
CHILD = "benchmarks.rows.memory"
FLAT = 1.05  # "the same", with room for a few pages


def status_bytes(entry: str) -> int:
    """Read one entry of this process's status, such as VmRSS."""
    found = re.search(rf"^{entry}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found, entry
    return int(found[1]) * 1024


def start_counting() -> int:
    """Give free memory back, set the high-water mark to the present, and return it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # what proc(5) says for the peak resident set size
    return status_bytes("VmRSS")


def peak(width: int, updates: int, scope: Scope) -> tuple[float, float]:
    """Fold updates; return the peak above the global model, and that model's size, in MB."""
    net = nets.build("resnet18", num_classes=10, width=width)
    weights = net.state_dict()
    submodels = [submodel_of(net, rho, scope) for rho in LEVELS]
    before = start_counting()
    mean = RecoveredMean(weights, "gated")
    for number, submodel in enumerate(islice(cycle(submodels), updates), 1):
        mean.add(LocalModel(submodel.slice(weights), submodel), 1.0)
        if number % max(updates // 5, 500) == 0:
            sys.stderr.write(f"  {number:,} of {updates:,} updates folded\n")
    mean.result()
    return (status_bytes("VmHWM") - before) / 1e6, num_bytes(weights) / 1e6


def measure(options: Options) -> Iterator[Row | str]:
    """Fold a thousand updates of mixed levels, and ten times as many of a narrower net."""
    if not CLEAR.exists():
        yield "peak memory is measured on Linux only"
        return
    width, narrow, few = (8, 8, 20) if options.quick else (64, 32, 1000)
    once: dict[tuple[int, int, str], tuple[float, float]] = {}

    def measured(width: int, updates: int, scope: str) -> tuple[float, float]:
        case = width, updates, scope
        if case not in once:
            once[case] = in_child(CHILD, *case, **GIVE_BACK)
        return once[case]

    for scope in ("inner",) if options.quick else ("inner", "all"):
        top, model = measured(width, few, scope)
        name = f"{WHAT} {few:,} updates of ResNet18 width {width}, scope {scope}, in models"
        yield as_much(name, top, "MB", model, at_most(5))
    if not options.quick:
        top, model = in_child(CHILD, width, few, "inner")
        name = (
            f"{WHAT} {few:,} updates of ResNet18 width {width}, with what malloc hoards, in models"
        )
        yield as_much(name, top, "MB", model)
    many, model = measured(narrow, 10 * few, "inner")
    name = f"{WHAT} {10 * few:,} updates of ResNet18 width {narrow}, scope inner"
    yield as_much(f"{name}, in models", many, "MB", model, at_most(5))
    first, _ = measured(narrow, few, "inner")
    yield as_much(f"{name}, over {few:,}", many, "MB", first, at_most(FLAT))


if __name__ == "__main__":
    print(json.dumps(peak(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))  # type: ignore[arg-type]  # noqa: T201
