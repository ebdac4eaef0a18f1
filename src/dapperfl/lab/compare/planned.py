"""The runs of a table: which config each has, and which folder and row belong to it."""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from dapperfl import methods
from dapperfl.data import benchmarks
from dapperfl.errors import ConfigError
from dapperfl.lab.compare.variants import Variant, check_settings
from dapperfl.lab.config import Config, to_keys
from dapperfl.lab.fields import is_among, show
from dapperfl.lab.younger import without

_log = logging.getLogger(__name__)

# Where and by which hands a run was computed says nothing about what was computed.
_IRRELEVANT = ("seed", "checkpoint_every", "data.root", "engine.", "deploy.")
_RELEVANT = ("engine.precision",)
_NEVER = object()  # equal to no value


@dataclass(frozen=True)
class Planned:
    """One run: whose row it is in which table, and how it is computed."""

    base: str  # what all variants of its table share
    label: str
    settings: str  # of the variant alone, and what else is not as in its preset
    config: Config

    @cached_property
    def id(self) -> str:
        """A short name for everything that decides the result, but for the seed."""
        return _digest(self.config, _IRRELEVANT)

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from every other run."""
        return self.id, self.config.seed

    @property
    def name(self) -> str:
        """What people see while it runs."""
        return f"{self.base}: {self.label}, seed {self.config.seed}"

    def folder(self, out: Path) -> Path:
        """Its run folder, the same in every table that needs this run."""
        method = re.sub(r"[^\w.-]", "-", self.config.method.name)
        name = f"{method}-{self.config.method.preset}-{self.id}"
        return out / "runs" / name / f"seed-{self.config.seed}"


@dataclass(frozen=True)
class Base:
    """What all variants of a table share."""

    name: str
    path: Path | None  # a TOML file; None: the demo
    overrides: tuple[str, ...] = ()
    of_method: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by its name

    def resolve(self, variant: Variant) -> Config:
        """Return the config of a variant; what it says itself goes before what all share."""
        return variant.resolve(self.path, (*self.of_method.get(variant.name, ()), *self.overrides))

    def folder(self, variants: Sequence[Variant]) -> Path:
        """Return where its runs go unless somebody says: the same for the same settings."""
        shared = self.resolve(variants[0])
        name = re.sub(r"[^\w.-]", "-", self.name)  # which may be that of a user's function
        return Path("runs") / f"compare-{name}-{_digest(shared, (*_IRRELEVANT, 'method.'))}"


def _digest(config: Config, but: tuple[str, ...]) -> str:
    later = without(config.method.name)
    relevant = (*_RELEVANT, *benchmarks.naming_keys(config.data.benchmark))
    keys = {
        key: value
        for key, value in to_keys(config).items()
        if (key in relevant or not is_among(key, but)) and later.get(key, _NEVER) != value
    }
    text = json.dumps(keys, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def plan_runs(base: Base, variants: Iterable[Variant], seeds: Sequence[int]) -> list[Planned]:
    """List every variant with every seed, variant by variant.

    Raises:
        ConfigError: a setting is wrong, or two variants are the same.
    """
    check_settings(base.overrides, "--set")
    runs: list[Planned] = []
    for variant in variants:
        config = base.resolve(variant)
        settings = _settings(variant, config)
        label = variant.label or _label(variant, config, settings)
        first = Planned(base.name, label, "; ".join(settings), config)
        preset = config.method.preset
        if variant.label and variant.preset is None and preset != "default":
            about = label, variant.name, base.path, preset
            _log.info('"%s" is %s as %s has it: preset "%s"', *about)
        for other in runs:
            if other.id == first.id:
                raise ConfigError(f'--methods: "{other.label}" and "{label}" are the same runs')
            if other.label == label:
                raise ConfigError(f'--methods: two variants are named "{label}"')
        runs += [replace(first, config=replace(config, seed=seed)) for seed in seeds]
    return runs


def _settings(variant: Variant, config: Config) -> list[str]:
    """Return what the preset's name does not tell: the variant's own, and changed fields."""
    preset = methods.load(config.method.name).from_preset(config.method.preset)
    own = {text.partition("=")[0].strip() for text in variant.settings}
    changed = [
        f"method.{name}={show(value)}"
        for name, value in config.method.fields.items()
        if value != getattr(preset, name) and f"method.{name}" not in own
    ]
    return [*variant.settings, *changed]


def _label(variant: Variant, config: Config, settings: Iterable[str]) -> str:
    """Return the name as somebody would type it; `default` needs no mention."""
    preset = variant.preset or config.method.preset
    plain = variant.preset is None and preset == "default"
    parts = [text.removeprefix("method.") for text in settings]
    return " ".join([variant.name if plain else f"{variant.name}:{preset}", *parts])
