"""What a device must know of a run before it can read anything about its net.

It travels in every message, a few kilobytes: a device then needs to remember nothing of it, and
each message can be handled by a new process.
"""

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

from dapperfl.errors import ConfigError, MessageError
from dapperfl.lab.config import Config, from_table, to_toml
from dapperfl.lab.deploy import MOST_PIXELS
from dapperfl.runtime.facts import as_text

if TYPE_CHECKING:
    from dapperfl.data.benchmark import Federation

SCHEMA = 1
LIMIT = 2**20  # bytes of one
MOST_CLASSES, MOST_PAD = 100_000, 1024
MOST_NUMBERS = 4 * MOST_PIXELS**2  # in a picture
RUN = re.compile(r"[A-Za-z0-9_-]{1,100}")  # fit for the name of a folder
_CODE = (("method", "name"), ("net", "name"), ("data", "benchmark"))  # keys that can name code


@dataclass(frozen=True)
class Terms:
    """What server and devices agree on."""

    run: str  # what this run is called in its messages; no other run is called so
    config: str  # TOML, all of it
    classes: tuple[str, ...]
    picture: tuple[int, ...]  # channels, height, width
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    pad: int

    def encode(self) -> bytes:
        """Return them as bytes."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":")).encode()

    def read_config(self, trusted: Collection[str] = ()) -> Config:
        """Return the config, once no part of it asks for code that is not trusted.

        Args:
            trusted: Modules beside dapperfl's own that may be named as `package.module:name`.

        Raises:
            MessageError: If it is no config, or names other code.
        """
        try:
            table = tomllib.loads(self.config)
            _refuse_code(table, trusted)
            return from_table(table)
        except (tomllib.TOMLDecodeError, ConfigError) as error:
            raise MessageError(f"the config of the run cannot be used: {error}") from error


def read_terms(data: bytes) -> Terms:
    """Read what `Terms.encode` wrote.

    Raises:
        MessageError: If it is anything else.
    """
    try:
        row = json.loads(data.decode())
        schema = row.pop("schema")
        if schema != SCHEMA:
            raise MessageError(
                f"the run has schema {as_text(str(schema))}, this version of dapperfl reads "
                f"{SCHEMA}; install the same version on server and devices"
            )
        facts: Any = {name: tuple(v) if type(v) is list else v for name, v in row.items()}
        terms = Terms(**facts)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise MessageError("what the run is about cannot be read") from error
    _check(terms)
    return terms


def _check(terms: Terms) -> None:
    """Check every field; those that others are compared with come first."""
    if not (type(terms.run) is str and RUN.fullmatch(terms.run)):
        raise _wrong("run")
    if type(terms.config) is not str:
        raise _wrong("config")
    if not (_all(terms.classes, str) and 0 < len(terms.classes) <= MOST_CLASSES):
        raise _wrong("classes")
    if type(terms.flip) is not bool:
        raise _wrong("flip")
    if not (type(terms.pad) is int and 0 <= terms.pad <= MOST_PAD):
        raise _wrong("pad")
    _check_pictures(terms)


def _check_pictures(terms: Terms) -> None:
    shape = terms.picture
    if not (_all(shape, int) and len(shape) == 3 and min(shape) > 0):
        raise _wrong("picture")
    if max(shape) > MOST_PIXELS:
        raise MessageError(f"pictures of {max(shape)} pixels are too large")
    if prod(shape) > MOST_NUMBERS:
        raise MessageError(f"pictures of {prod(shape)} numbers are too large")
    for name, numbers in (("mean", terms.mean), ("std", terms.std)):
        if not (_all(numbers, float) and len(numbers) == shape[0] and all(map(isfinite, numbers))):
            raise _wrong(name)
    if min(terms.std) <= 0:
        raise _wrong("std")


def _wrong(name: str) -> MessageError:
    return MessageError(f'the "{name}" of the run is not what it should be')


def _all(values: object, kind: type) -> bool:
    return isinstance(values, tuple) and all(type(each) is kind for each in values)


def _refuse_code(table: Mapping[str, Any], trusted: Collection[str]) -> None:
    """Refuse a config that would have this machine import what its owner has not agreed to."""
    for section, key in _CODE:
        inner = table.get(section, {})
        name = inner.get(key, "") if isinstance(inner, Mapping) else ""
        module, colon, _ = str(name).partition(":")
        if colon and module not in trusted:
            raise MessageError(
                f'the config asks for {section}.{key} = "{as_text(str(name))}", code from outside '
                f"dapperfl; a device that agrees joins with --modules {as_text(module)}"
            )


def terms_of(config: Config, world: "Federation", run: str) -> Terms:
    """Return what devices are told; where the server keeps its data is not their business.

    Raises:
        ConfigError: No device would take it.
    """
    public = replace(config, data=replace(config.data, root=None))
    terms = Terms(
        run=run,
        config=to_toml(public),
        classes=tuple(world.classes),
        picture=world.shape,
        mean=_by_channel(world.mean, world.shape[0]),
        std=_by_channel(world.std, world.shape[0]),
        flip=bool(world.flip),
        pad=world.pad,
    )
    try:
        _check(terms)
    except MessageError as error:
        raise ConfigError(f"no device would take this run: {error}") from error
    if (size := len(terms.encode())) > LIMIT:
        raise ConfigError(
            f"what devices are told of the run has {size} bytes, and they take {LIMIT} at most; "
            "give its classes shorter names"
        )
    return terms


def _by_channel(numbers: Sequence[float], channels: int) -> tuple[float, ...]:
    """Return a number for each channel; a single one is for all."""
    found = tuple(map(float, numbers))
    return found * channels if len(found) == 1 else found
