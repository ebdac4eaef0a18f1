"""What a device is: its settings, its pictures, and the work it does on a task.

The work itself is the reference runner's, with one client.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    Device,
    LeftOut,
    Moments,
    StatisticsTask,
    Work,
)
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.errors import (
    BudgetError,
    ConfigError,
    DapperFLError,
    DataError,
    MessageError,
    RunError,
    TraceError,
    is_of_memory,
)
from dapperfl.flower.kit import Kit
from dapperfl.flower.own_folder import Sides, load_folder
from dapperfl.flower.remembered import Remembered
from dapperfl.flower.terms import Terms
from dapperfl.lab.build import load_federation
from dapperfl.runtime.evaluation import evaluate
from dapperfl.runtime.frozen import FrozenNets
from dapperfl.runtime.training import LARGE_BATCH, Trained
from dapperfl.runtime.wire import Task
from dapperfl.sim.loop import LoopRunner

_SPOKEN = (MessageError, RunError, BudgetError, TraceError)  # their texts tell nothing private
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Settings:
    """What the owner of a device has decided; it never leaves the device, but for id and rho."""

    id: int
    state: Path  # where the device keeps what it must remember
    rho: float | None = None  # None: that of the benchmark's partition
    data: Path | None = None  # a folder of its own pictures; None: a part of the run's benchmark
    domain: str = "own"  # what kind of pictures these are
    keep_aside: float = 0.2  # share of them that models are measured on, not trained
    root: Path | None = None  # where the benchmark's pictures are
    modules: tuple[str, ...] = ()  # beside dapperfl's own, whose code a run may ask for

    @classmethod
    def read(cls, table: Mapping[str, object]) -> "Settings":
        """Read the node config.

        Raises:
            ConfigError: A key is missing or has no good value.
        """
        given = {key.replace("-", "_"): value for key, value in table.items()}
        try:
            number, state = given["device_id"], Path(str(given["state"]))
            found = cls(int(str(number)), state, **_optional(given))
        except KeyError as error:
            raise ConfigError(f"the settings of this device lack {error}") from error
        except ValueError as error:
            raise ConfigError(f"the settings of this device are wrong: {error}") from error
        if not 0 <= found.keep_aside < 1:
            raise ConfigError(f"keep-aside = {found.keep_aside}: expected at least 0 and below 1")
        if found.data is not None and found.rho is None:
            raise ConfigError("a device with a folder of its own must say its rho")
        return found


def _optional(given: Mapping[str, object]) -> dict[str, Any]:
    readers: dict[str, Callable[[object], Any]] = {
        "rho": lambda value: float(str(value)),
        "data": lambda value: Path(str(value)),
        "domain": str,
        "keep_aside": lambda value: float(str(value)),
        "root": lambda value: Path(str(value)),
        "modules": lambda value: tuple(filter(None, map(str.strip, str(value).split(",")))),
    }
    return {name: read(given[name]) for name, read in readers.items() if name in given}


@dataclass(frozen=True)
class Holding:
    """A device with its pictures."""

    device: Device
    train: Examples
    aside: Examples | None


def holding_of(settings: Settings, kit: Kit) -> Holding:
    """Find the pictures of a device, and with them who it is in this run.

    Raises:
        DapperFLError: They cannot be read, or the run has no such device.
    """
    if settings.data is None:
        return _part_of_benchmark(settings, kit)
    terms = kit.terms
    examples = load_folder(settings.data, terms.classes, terms.picture[1])
    sides = Sides(settings.state / terms.run / "aside.json", settings.keep_aside)
    train, aside = sides.split(examples, kit.config.seed, settings.id)
    device = Device(settings.id, settings.domain, settings.rho or 0.0, len(train))
    return Holding(device, train, aside)


def _part_of_benchmark(settings: Settings, kit: Kit) -> Holding:
    if kit.config.deploy.devices_bring_pictures:
        raise MessageError("the run wants devices with folders of their own, and this one has none")
    federation = _federation(kit.terms, settings)
    found = [each for each in federation.devices if each.id == settings.id]
    if not found:
        raise MessageError(f"the run has no device {settings.id}")
    rho = found[0].rho if settings.rho is None else settings.rho
    device, aside = replace(found[0], rho=rho), federation.validation.get(settings.id)
    return Holding(device, federation.train[settings.id], aside)


@lru_cache(maxsize=1)  # a process may handle several messages of a run
def _federation(terms: Terms, settings: Settings) -> Federation:
    """Divide the benchmark as the server does; where it lies here is this device's own choice."""
    config = terms.read_config(settings.modules)
    root = None if settings.root is None else str(settings.root)
    return load_federation(replace(config, data=replace(config.data, root=root)))


class DeviceRunner(LoopRunner):
    """The reference runner, for one device whose owner is to hear all that goes wrong."""

    trouble: Exception | None = None  # what ended the work

    def _train(self, work: Work) -> Trained:
        with self._noted():
            return super()._train(work)

    def _measure(self, task: StatisticsTask) -> Moments:
        with self._noted():
            return super()._measure(task)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.trouble = error
            raise

    def only(self, replies: Iterator[ClientUpdate | Moments | LeftOut]) -> ClientUpdate | Moments:
        """Return the one reply, or raise what was in its way."""
        reply = next(replies)
        if isinstance(reply, LeftOut):
            raise self.trouble or RunError(reply.reason)
        return reply


def reason_of(error: Exception) -> str:
    """Say what went wrong without a path, a name or a number of this device's own."""
    if isinstance(error, _SPOKEN):
        return str(error)
    if is_of_memory(error):
        return "the device has too little memory"
    if isinstance(error, OSError) and error.errno in _FULL:
        return "the device's disk is full"
    if isinstance(error, DataError):
        return "the device cannot use its pictures; its log says why"
    kind = type(error).__name__ if isinstance(error, DapperFLError) else "an error"
    return f"the device failed with {kind}; its log says more"


def work_on(
    task: Task, kit: Kit, holding: Holding, remembered: Remembered
) -> ClientUpdate | Moments:
    """Do what the server asks for; what is to be remembered is on the disk when this returns.

    Raises:
        Exception: Whatever went wrong; see `reason_of` for what the server may hear of it.
    """
    device = task.device.id
    data = {device: kit.batches(holding.train)}
    runner = DeviceRunner(kit.trade, data, kit.config.seed)
    if isinstance(task, StatisticsTask):
        return runner.only(runner.statistics([task]))
    memory = remembered.before(task.round_num)
    here = kit.codec.cargo.here(memory)
    runner.memories = {device: here} if here else {}
    measured = _measured(task, kit, holding.aside)
    reply = runner.only(runner.train([task]))
    assert isinstance(reply, ClientUpdate)
    remembered.keep(task.round_num, runner.memories.get(device, {}))
    return replace(reply, metrics={**reply.metrics, **measured})


def _measured(task: Assignment, kit: Kit, aside: Examples | None) -> dict[str, float]:
    """Measure the model that came on the pictures kept aside."""
    if aside is None or not len(aside):
        return {}
    trade = kit.trade
    net = FrozenNets(trade.template, trade.precision, turns=trade.turns).holding(task.model)
    batches = {"aside": kit.batches(aside, LARGE_BATCH).clean()}
    percent = evaluate(net, batches, trade.precision)["aside"]
    return {"tested": len(aside), "correct": round(percent * len(aside) / 100)}
