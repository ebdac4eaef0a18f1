"""What is searched: one dimension a key, as `--space` writes it.

KEY=LOW..HIGH        evenly between two numbers, both included
KEY=log(LOW,HIGH)    evenly in their logarithm, for numbers of unknown size
KEY={A,B,...}        one of these
"""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config, from_table, to_keys, to_table
from dapperfl.lab.fields import Typed, expected, show

# What the paper leaves to be chosen by hand: the first three within all they may be.
DAPPERFL_SPACE = (
    "method.alpha_0=0..1",
    "method.alpha_min=0..1",
    "method.epsilon=0..1",
    "method.gamma=log(1e-4,1)",
)
_FORMS = 'expected LOW..HIGH, log(LOW,HIGH) or {A,B}; a shell wants it quoted: --space "KEY=…"'
# Keys that no trial may change, and what to do instead.
_FIXED: Mapping[str, str] = {
    "seed": "name the seeds of every trial with --seeds",
    "rounds": "all trials have as many rounds as the config",
    "method": "a study is of one method; to choose between methods: dapperfl compare",
    "method.name": "a study is of one method; to choose between methods: dapperfl compare",
    "method.preset": "search its fields instead, such as method.recovery",
    "fleet.devices": "it would change the pictures that trials are judged by",
}
_MOST_CHOICES = 100


@dataclass(frozen=True)
class Interval:
    """Numbers between two ends, both included."""

    key: str
    low: float
    high: float
    log: bool
    whole: bool

    def value(self, drawn: Any) -> Any:
        """Return what a config holds for a number that was drawn."""
        return int(drawn) if self.whole else float(drawn)

    def drawn(self, value: Any) -> Any:
        """Return what would have been drawn for a config's value; None outside the ends."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if number and self.low <= value <= self.high else None

    def __str__(self) -> str:
        low, high = (show(self.value(end)) for end in (self.low, self.high))
        return f"{self.key}=log({low},{high})" if self.log else f"{self.key}={low}..{high}"


@dataclass(frozen=True)
class Choice:
    """One of several values; they are drawn by the way they are written."""

    key: str
    values: tuple[Any, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as a config file writes them."""
        return tuple(show(value).strip('"') for value in self.values)

    def value(self, drawn: Any) -> Any:
        """Return the value for a text that was drawn."""
        return self.values[self.texts.index(drawn)]

    def drawn(self, value: Any) -> Any:
        """Return the text of a value; None if it is not among these."""
        return self.texts[self.values.index(value)] if value in self.values else None

    def __str__(self) -> str:
        return f"{self.key}={{{','.join(self.texts)}}}"


Dimension = Interval | Choice


def parse_space(texts: Iterable[str], config: Config) -> tuple[Dimension, ...]:
    """Read the dimensions of a search and try their ends in the config.

    Raises:
        ConfigError: a text is none of the three forms, its key does not exist or may not be
            searched, or an end is out of the key's range.
    """
    found = tuple(_parse(text, config) for text in texts)
    if not found:
        raise ConfigError(f"there is nothing to search: {_FORMS}")
    for dimension in found:
        if sum(each.key == dimension.key for each in found) > 1:
            raise ConfigError(f"--space names {dimension.key} twice")
    return found


def default_space(config: Config) -> tuple[str, ...]:
    """Return what is searched when nothing is asked for: the paper's four constants.

    Raises:
        ConfigError: the method has no such fields.
    """
    missing = {text.partition("=")[0] for text in DAPPERFL_SPACE} - to_keys(config).keys()
    if missing:
        raise ConfigError(
            f'there is no usual space for method "{config.method.name}"; say what to search, such '
            'as --space "train.lr=log(0.001,0.1)"'
        )
    return DAPPERFL_SPACE


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with the values of some dotted keys."""
    table = deepcopy(to_table(config))
    for key, value in values.items():
        *parents, name = key.split(".")
        place = table
        for parent in parents:
            below = place.setdefault(parent, {})
            if not isinstance(below, dict):
                raise ConfigError(f'unknown key "{key}": {parent} is a value, not a table')
            place = below
        place[name] = value
    return from_table(table)


def _parse(text: str, config: Config) -> Dimension:
    key, equals, form = (part.strip() for part in text.partition("="))
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--space {text}: {_FORMS}")
    _refuse_fixed(text, key)
    try:
        return _dimension(key, form, config)
    except ConfigError as error:
        raise ConfigError(f"--space {text}: {error}") from error


def _refuse_fixed(text: str, key: str) -> None:
    if key in _FIXED:
        raise ConfigError(f"--space {text}: {key} cannot be searched; {_FIXED[key]}")
    if key.split(".")[0] in ("data", "engine", "deploy", "checkpoint_every"):
        raise ConfigError(
            f"--space {text}: {key} cannot be searched: it says what trials are judged by, or "
            "where and how fast they run, not how well a method does"
        )


def _dimension(key: str, form: str, config: Config) -> Dimension:
    if choices := re.fullmatch(r"\{(.*)\}", form):
        return _choice(key, choices[1], config)
    if ends := re.fullmatch(r"log\(([^,]*),([^,]*)\)", form):
        return _interval(key, ends[1], ends[2], config, log=True)
    low, dots, high = form.partition("..")
    if dots:
        return _interval(key, low, high, config, log=False)
    with_values(config, {key: Typed(form)})  # a wrong key deserves to be named first
    raise ConfigError(_FORMS)


def _interval(key: str, low: str, high: str, config: Config, *, log: bool) -> Interval:
    ends: list[float] = []
    for text in (low, high):
        with_values(config, {key: Typed(text.strip())})  # refuses what is out of its range
        number = Typed(text.strip()).value(float)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ConfigError(f"{text.strip()} is no number; {key} takes {_takes(key, config)}")
        ends.append(float(number))
    kinds = _kinds(key, config)
    if not {int, float} & set(kinds):
        raise ConfigError(f"{key} takes {_takes(key, config)}; write {{A,B}}")
    first, last = ends
    if not first < last or not math.isfinite(last - first):
        raise ConfigError(f"expected two numbers, the smaller one first, not {low} and {high}")
    if log and first <= 0:
        raise ConfigError(f"a logarithm needs numbers above 0, not {low}")
    return Interval(key, first, last, log=log, whole=float not in kinds)


def _choice(key: str, inside: str, config: Config) -> Choice:
    values = [to_keys(with_values(config, {key: each}))[key] for each in _items(inside)]
    different = [each for number, each in enumerate(values) if each not in values[:number]]
    if not 1 < len(different) <= _MOST_CHOICES:
        raise ConfigError(f"expected 2 to {_MOST_CHOICES} different values in {{{inside}}}")
    return Choice(key, tuple(different))


def _items(inside: str) -> list[Any]:
    try:
        items: list[Any] = tomllib.loads(f"items = [{inside}]")["items"]
    except tomllib.TOMLDecodeError:
        return [Typed(each.strip()) for each in inside.split(",")]
    return items


def _hint(key: str, config: Config) -> Any:
    table, _, name = key.rpartition(".")
    owner = config.method.build() if table == "method" else getattr(config, table, config)
    return get_type_hints(type(owner))[name]


def _kinds(key: str, config: Config) -> tuple[Any, ...]:
    hint = _hint(key, config)
    return get_args(hint) or (hint,)


def _takes(key: str, config: Config) -> str:
    return expected(_hint(key, config))
