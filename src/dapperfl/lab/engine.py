"""From the engine's settings to a runner on a device of this machine."""

from dataclasses import dataclass
from functools import partial

from dapperfl import environment
from dapperfl.errors import ConfigError
from dapperfl.lab.config import EngineConfig
from dapperfl.runtime.threads import cores
from dapperfl.sim.cpu import CpuRunner
from dapperfl.sim.graphs import BRANCHES, GraphRunner
from dapperfl.sim.loop import LoopRunner, MakeRunner


@dataclass(frozen=True)
class Engine:
    """What was chosen for this machine."""

    device: str
    runner: MakeRunner
    threads: int | None  # that torch computes a round with; None: torch's own choice
    about: str  # in words, for people


def choose(config: EngineConfig) -> Engine:
    """Pick a runner.

    Raises:
        ConfigError: If this machine cannot do what is asked for.
    """
    environment.prepare()  # before the GPU is first used, also where no command began it
    device = config.torch_device()
    on_gpu = device != "cpu"
    if config.name == "graphs" and not on_gpu:
        raise ConfigError('engine.name = "graphs" needs a CUDA device; choose "cpu" or "auto"')
    if config.name == "cpu" and on_gpu:
        raise ConfigError(f'engine.name = "cpu" does not run on "{device}"; set engine.device=cpu')
    if config.precision == "tf32" and not on_gpu:
        raise ConfigError('engine.precision = "tf32" needs a CUDA device; choose "fp32" or "bf16"')
    name = config.name
    if name == "auto":
        name = "graphs" if on_gpu else "cpu"
    runner, how = _runner(name, config)
    exact = config.exact and not on_gpu
    facts = [f"{name} engine", *how, config.precision, *(["exact"] if exact else [])]
    return Engine(device, runner, 1 if exact else None, ", ".join(facts))


def _runner(name: str, config: EngineConfig) -> tuple[MakeRunner, list[str]]:
    """Return what makes the runner, and how many clients it trains at once, in words."""
    if name == "loop":
        return LoopRunner, []
    if name == "graphs":
        branches = config.workers or BRANCHES
        return partial(GraphRunner, branches=branches), [f"{branches} clients at once"]
    workers = config.workers or cores()
    how = f"{workers} worker{'s' if workers > 1 else ''}"
    return partial(CpuRunner, workers=workers, exact=config.exact), [how]
