"""What the engine adds to the work itself: many clients with one step each, on the CPU.

That is the case in which a framework's own doings show most. Flower on Ray and pfl-research do
the same work where they are installed, each in a process of its own.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec

from benchmarks.baselines import bare_loop
from benchmarks.measure import Options, Row, as_much, at_most, in_child, medians, with_threads
from benchmarks.synthetic import NOISE
from dapperfl.lab.build import build
from dapperfl.lab.config import Config
from dapperfl.lab.resolve import resolve
from dapperfl.runtime.turning import laid_out

EACH = bare_loop.BATCH  # so that an epoch is one step
# pfl 0.4 asks for numpy below 2, which it does not need for this: hence without its dependencies.
PFL = "--no-deps pfl && pip install multiprocess scipy dp-accounting prv-accountant"
OTHERS = {  # what to call it: (the package to look for, how to get it, the baseline's module)
    "Flower on Ray": ("ray", "'flwr[simulation]'", "benchmarks.baselines.flower_ray"),
    "pfl-research": ("pfl", PFL, "benchmarks.baselines.pfl_research"),
}


def config(engine: str, devices: int, width: int, rounds: int) -> Config:
    """Describe plain federated averaging of a small CNN on noise."""
    settings = [
        *("method=fedavg", "net=convnet", f"net.width={width}"),
        *(f"data={NOISE}", f"data.devices={devices}", f"data.each={EACH}", "data.protocol=iid"),
        *(f"fleet.devices={devices}", "fleet.rhos=[0.0]", f"rounds={rounds}"),
        *("train.epochs=1", f"train.batch_size={bare_loop.BATCH}", f"train.lr={bare_loop.LR}"),
        *(f"engine={engine}", "engine.device=cpu"),
    ]
    return resolve(None, settings)


def our_round(engine: str, devices: int, width: int, rounds: int) -> Callable[[], object]:
    """Return a function that runs one more round of this package."""
    records = build(config(engine, devices, width, rounds)).rounds()
    return lambda: next(records)


def bare_round(devices: int, width: int, turns: bool = False) -> Callable[[], object]:
    """Return a function that runs one more round of the bare loop, from the same beginning.

    It is as one writes it; with `turns` its net holds channels last, as the engine's nets do.
    """
    simulator = build(config("loop", devices, width, 1))
    world = simulator.federation
    clients = [world.train[device.id] for device in world.devices]
    net = laid_out(simulator.net, turns)
    return bare_loop.rounds(net, clients, world.test["noise"])


def measure(options: Options) -> Iterator[Row | str]:
    """Compare a round of each engine with the bare loop's, with one thread or all if faster."""
    devices, width, repeats = (4, 4, 2) if options.quick else (50, 32, 15)
    work = [our_round(name, devices, width, repeats + 1) for name in ("auto", "loop")]
    bare = [
        with_threads(count, bare_round(devices, width, turns))
        for turns in (False, True)
        for count in bare_loop.threads()
    ]
    auto, loop, *trials = medians([*work, *bare], repeats)
    half = len(trials) // 2
    best, turned = min(trials[:half]), min(trials[half:])
    what = f"CPU: {devices} clients x 1 step of {EACH}, convnet width {width}, fp32"
    for name, seconds, goal in (("auto", auto, at_most(1.10)), ("loop", loop, None)):
        row = f"{what}: engine {name} over a bare loop"
        yield as_much(row, 1e3 * seconds, "ms", 1e3 * best, goal)
    row = f"{what}: engine auto over a bare loop with channels last"
    yield as_much(row, 1e3 * auto, "ms", 1e3 * turned)
    for name, (package, install, module) in OTHERS.items():
        if find_spec(package) is None:
            yield f"{name} is not installed; to measure it here: pip install {install}"
        else:
            theirs, own = in_child(module, devices, width, repeats)
            label = f"{name} ({package} {version(package)})"
            yield as_much(f"{what}: {label} over a bare loop", 1e3 * theirs, "ms", 1e3 * own)
