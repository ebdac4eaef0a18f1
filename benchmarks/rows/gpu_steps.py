"""What a physically smaller net buys in the GPU's runner: one client step at rho = .8.

A round has more in it than steps, so two rounds are compared that differ in their epochs alone:
the difference, divided by the additional steps, is the step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.measure import Options, Row, at_least, faster, medians
from benchmarks.rows.gpu_rounds import Engine, rounds_of
from benchmarks.synthetic import NOISE
from dapperfl.lab.build import build
from dapperfl.lab.resolve import resolve

GOAL = 1.5
BATCH = 64


@dataclass(frozen=True)
class Fleet:
    """Equal devices, all of one level, which train a submodel of HeteroFL in every epoch."""

    net: str
    width: int
    scope: str
    devices: int = 10
    batches: int = 10

    def round(self, rho: float, epochs: int, engine: Engine, rounds: int) -> Callable[[], object]:
        """Return a function that runs one more round."""
        settings = [
            *("method=heterofl", f"method.scope={self.scope}", "method.bn_statistics=average"),
            *(f"net={self.net}", f"net.width={self.width}", f"fleet.devices={self.devices}"),
            *(f"data={NOISE}", f"data.devices={self.devices}", f"data.each={BATCH * self.batches}"),
            *("data.protocol=iid", f"fleet.rhos=[{rho}]", f"rounds={rounds}"),
            *(f"train.epochs={epochs}", f"train.batch_size={BATCH}", *engine.settings()),
        ]
        return rounds_of(build(resolve(None, settings)), engine)


def step_row(fleet: Fleet, engine: Engine, epochs: int, repeats: int) -> Row:
    """Compare a step of the small net with one of the full net."""
    cases = [(rho, many) for rho in (0.8, 0.0) for many in (2 * epochs, epochs)]
    work = [fleet.round(rho, many, engine, repeats + 1) for rho, many in cases]
    small_long, small, full_long, full = medians(work, repeats)
    steps = fleet.devices * fleet.batches * epochs
    name = (
        f"step at rho .8 against the full net, {fleet.net} width {fleet.width}, batch {BATCH}, "
        f"{engine.name} {engine.precision}, scope {fleet.scope}"
    )
    fast, slow = (max(gap, 1e-9) / steps for gap in (small_long - small, full_long - full))
    return faster(name, fast, slow, at_least(GOAL))


def measure(options: Options) -> Iterator[Row | str]:
    """Measure both nets of the paper and both scopes where there is a GPU."""
    if not torch.cuda.is_available():
        yield "there is no CUDA device here, so its steps are not measured"
        return
    epochs, repeats = (2, 2) if options.quick else (3, 5)
    for net in ("resnet10", "resnet18"):
        for scope in ("all", "inner"):
            yield step_row(Fleet(net, 64, scope), Engine(), epochs, repeats)
