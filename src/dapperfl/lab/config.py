"""All that can be configured, as frozen dataclasses whose defaults are the demo.

A config is a tree of plain values: `to_toml` writes every one of them, and reading that text back
gives an equal config.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

import tomli_w
import torch

from dapperfl import methods, nets
from dapperfl.data import benchmarks
from dapperfl.data.partition import PartitionSettings
from dapperfl.errors import ConfigError
from dapperfl.lab.deploy import DeployConfig
from dapperfl.lab.fields import (
    convert,
    fill,
    require_table,
    unknown_key,
)
from dapperfl.methods.base import Method
from dapperfl.naming import did_you_mean
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.precision import Precision
from dapperfl.settings import Range, check_setting, check_settings, setting


@dataclass(frozen=True)
class MethodConfig:
    """Which method, and the value of every one of its fields: the preset's unless given."""

    name: str = setting("dapperfl", "a file of dapperfl.methods, or package.module:Class")
    preset: str = setting("default", "where the values of the fields not given come from")
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Complete the fields from the preset, so that equal configs compare equal."""
        method = self._resolve()
        values = {each.name: getattr(method, each.name) for each in fields(method)}
        hints = get_type_hints(type(method))
        for name, value in values.items():  # a run folder must be readable once it is written
            convert(value, hints[name], f"method.{name}")
        object.__setattr__(self, "fields", values)

    def _resolve(self) -> Method:
        kind = methods.load(self.name)
        hints = get_type_hints(kind)
        known = {each.name: each for each in fields(kind)}
        given = {}
        for name, value in self.fields.items():
            if name not in known:
                raise unknown_key(f"method.{name}", name, ["name", "preset", *known])
            given[name] = convert(value, hints[name], f"method.{name}")
            check_setting(known[name], hints[name], given[name], "method.")
        self._check_preset(kind, hints)
        return kind.from_preset(self.preset, **given)

    def _check_preset(self, kind: type[Method], hints: Mapping[str, Any]) -> None:
        """Refuse what the chosen preset of somebody's own method sets, if it cannot be."""
        known = {each.name: each for each in fields(kind)}
        at = f'{kind.__name__}.presets["{self.preset}"]: '
        for name, value in kind.presets.get(self.preset, {}).items():
            if name not in known:
                raise ConfigError(f'{at}there is no field "{name}"{did_you_mean(name, known)}')
            check_setting(known[name], hints[name], convert(value, hints[name], at + name), at)

    def build(self) -> Method:
        """Return the method, a frozen bag of these values."""
        return methods.load(self.name)(**self.fields)


@dataclass(frozen=True)
class NetConfig:
    """Which net every device trains a part of."""

    name: str = setting("resnet10", "a net of dapperfl.nets, or package.module:factory")
    width: int | None = setting(16, 'channels of the first stage; "none": the net\'s own', Range(1))

    def __post_init__(self) -> None:
        """Refuse a net that does not exist, with the nearest that does."""
        check_settings(self, "net.")
        _check_name("net.name", self.name, nets.names())


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Which pictures, and the value of every option that their benchmark has."""

    benchmark: str = setting(
        "minidigits", "a benchmark of dapperfl.data.benchmarks, or package.module:load"
    )
    root: str | None = setting(None, 'folder of the data; "none": the benchmark\'s own place')
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Complete the options by their defaults, so that equal configs compare equal."""
        _check_name("data.benchmark", self.benchmark, benchmarks.names())
        if ":" in self.benchmark and not self.options:
            return  # a run folder must be readable where somebody's own benchmark is not
        known = benchmarks.options(self.benchmark)
        values = {name: option.default for name, option in known.items()}
        for name, value in self.options.items():
            if name not in known:
                if benchmarks.is_positional(self.benchmark, name):
                    raise ConfigError(
                        f'data.{name}: load of "{self.benchmark}" takes it by position; write it '
                        f"behind a star, load(root, *, {name}=…), to make it an option"
                    )
                own = [key for key in _names(DataConfig) if key != "options"]
                raise unknown_key(f"data.{name}", name, [*own, *known])
            values[name] = convert(value, known[name].hint, f"data.{name}")
        object.__setattr__(self, "options", values)


@dataclass(frozen=True, kw_only=True)
class DataConfig(PartitionSettings, BenchmarkConfig):
    """Which pictures, and how they are spread over the devices."""

    def __post_init__(self) -> None:
        """Refuse what does not exist, with the nearest that does."""
        BenchmarkConfig.__post_init__(self)
        PartitionSettings.__post_init__(self)


@dataclass(frozen=True)
class FleetConfig:
    """Which devices there are, and how many of them take part in a round."""

    devices: int = setting(10, "number of devices", Range(1))
    rhos: tuple[float, ...] = setting(
        (0.0, 0.2, 0.4, 0.6, 0.8),
        "shares of the parameters that the levels remove; devices take them in turn",
        Range(0, below=1),
    )
    participation: float = setting(
        1.0, "share of the devices drawn for each round", Range(above=0, at_most=1)
    )

    def __post_init__(self) -> None:
        """Refuse a fleet that cannot be."""
        check_settings(self, "fleet.")
        if not self.rhos:
            raise ConfigError("fleet.rhos = []: expected at least one level, such as [0.0]")


@dataclass(frozen=True)
class EngineConfig:
    """How the clients of a round are run; only precision and exact touch the last bits."""

    name: Literal["auto", "loop", "graphs", "cpu"] = setting(
        "auto",
        "the runner: graphs on a GPU, cpu on all cores, or the plain loop; auto picks one of the "
        "first two",
    )
    workers: int | None = setting(
        None, 'clients trained side by side; "none": ten on a GPU, one a core on a CPU', Range(1)
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N; auto takes a GPU if there is one")
    precision: Precision = setting("fp32", "number format of the training step")
    exact: bool = setting(
        True,
        "the same bits every time: on a CPU for any number of workers, with one thread each; on a "
        "GPU only by kernels that repeat themselves",
    )
    memory_limit_mb: int = setting(
        1024, "MiB of what clients remember that are held in memory; the rest is on disk", Range(0)
    )

    def __post_init__(self) -> None:
        """Refuse a device that torch would only refuse much later."""
        check_settings(self, "engine.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(
                f'engine.device = "{self.device}": expected "auto", "cpu", "cuda" or "cuda:N"'
            )

    def torch_device(self) -> str:
        """Return the device to train on, which must exist on this machine."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device == "auto":
            return "cuda" if count else "cpu"
        index = int(self.device.partition(":")[2] or 0)
        if self.device != "cpu" and index >= count:
            raise ConfigError(
                f'engine.device = "{self.device}": this machine has {count} CUDA devices; '
                'choose "cpu" or "auto"'
            )
        return self.device


@dataclass(frozen=True)
class Config:
    """One run, completely described. The defaults are the demo, tuned for two cores."""

    seed: int = setting(0, "decides every random draw of the run", Range(0))
    rounds: int = setting(10, "rounds of training and aggregation", Range(1))
    checkpoint_every: int = setting(
        1, "rounds between checkpoints: as many may have to be repeated after a kill", Range(1)
    )
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(epochs=3, batch_size=32, lr=0.05)
    )
    method: MethodConfig = field(default_factory=MethodConfig)
    net: NetConfig = field(default_factory=NetConfig)
    data: DataConfig = field(default_factory=DataConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    deploy: DeployConfig = field(default_factory=DeployConfig)

    def __post_init__(self) -> None:
        """Check every number against the range of its key."""
        check_settings(self)


def _check_name(key: str, name: str, known: Sequence[str]) -> None:
    if ":" not in name and name not in known:
        raise ConfigError(f'{key} = "{name}" does not exist{did_you_mean(name, known)}')


def from_table(table: Mapping[str, Any]) -> Config:
    """Return the demo's config with what a (nested) table changes."""
    start = Config()
    for name in [name for name in table if name not in _names(Config)]:
        # Somebody who writes `lr` at the top level wants to hear of `train.lr`.
        homes = [key for key in to_keys(start) if key.rpartition(".")[2] == name]
        raise unknown_key(name, homes[0] if homes else name, [*homes, *_names(Config)])
    rest = {name: value for name, value in table.items() if name not in ("method", "data")}
    given = dict(require_table(table.get("method", {}), "method"))
    chosen = {
        name: convert(given.pop(name), str, f"method.{name}")
        for name in ("name", "preset")
        if name in given
    }
    method = MethodConfig(**chosen, fields=given)
    data = _data(require_table(table.get("data", {}), "data"))
    return replace(fill(start, rest), method=method, data=data)


def _data(table: Mapping[str, Any]) -> DataConfig:
    own = set(_names(DataConfig)) - {"options"}
    shared = fill(DataConfig(), {name: table[name] for name in table if name in own}, "data.")
    given = {name: table[name] for name in table if name not in own}
    return replace(shared, options=given) if given else shared


def _names(kind: type[Any]) -> list[str]:
    return [each.name for each in fields(kind)]


def to_table(config: Config) -> dict[str, Any]:
    """Return every value in nested tables, as TOML can hold them."""
    table = asdict(config)
    table["method"].update(table["method"].pop("fields"))
    table["data"].update(table["data"].pop("options"))
    return _for_toml(table)  # type: ignore[no-any-return]


def _for_toml(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _for_toml(each) for name, each in value.items()}
        case list() | tuple():
            return [_for_toml(each) for each in value]
        case None:
            return "none"  # TOML has no null
        case _:
            return value


def to_toml(config: Config) -> str:
    """Write a config out, every field of its method included."""
    return tomli_w.dumps(to_table(config))


def to_keys(config: Config) -> dict[str, Any]:
    """Return every value by its dotted key, as `--set` names it."""
    return flat(to_table(config))


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    return dict(_flat(table))


def _flat(table: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value
