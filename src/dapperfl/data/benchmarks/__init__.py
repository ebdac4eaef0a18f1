"""One file per benchmark: the file's name is the benchmark's, its `load(root)` makes it.

Keyword-only parameters of `load` are the benchmark's options: keys of the [data] table. Each has a
default; its annotation says the type and, as in `Annotated[int, "…"]`, one line of help.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import torch

from dapperfl.core.rng import derive_seed, foreign_seeded
from dapperfl.data.benchmark import Benchmark
from dapperfl.data.catalogue import CATALOGUE
from dapperfl.data.checking import check_parts
from dapperfl.data.facts import with_plain_facts
from dapperfl.data.partition.settings import PartitionSettings
from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean, load_object, users_code

# Keys of the [data] table that mean the same whatever the pictures are.
_SHARED = {"benchmark", "root", "options", *(each.name for each in fields(PartitionSettings))}


@dataclass(frozen=True)
class Option:
    """Something that a benchmark can be asked for."""

    hint: Any  # the type of its values
    default: Any
    help: str


def names() -> list[str]:
    """List the benchmarks, which are the modules of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def naming_keys(name: str) -> tuple[str, ...]:
    """Return the settings that say which pictures these are, and not just where they lie.

    The pictures of a known data set are the same in any place; two folders are two data sets.
    """
    return () if name in ("minidigits", *CATALOGUE) else ("data.root",)


def options(name: str) -> Mapping[str, Option]:
    """Return what a benchmark can be asked for, by name.

    Args:
        name: one of `names()`, or `package.module:load`.

    Raises:
        ConfigError: an option has no default, or the name of a key that all benchmarks share.
    """
    loader = _loader(name)
    asked = {
        each.name: each
        for each in inspect.signature(loader).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    hints = _hints(name, loader, asked)
    found = {
        option: _option(each, hints.get(option, type(each.default)))
        for option, each in asked.items()
    }
    for option in found:
        if option in _SHARED:
            raise ConfigError(
                f'benchmark "{name}" has an option "{option}", but data.{option} is a key of all '
                "benchmarks; rename the parameter of its load"
            )
    return found


def is_positional(name: str, option: str) -> bool:
    """Say whether a benchmark's `load` has such a parameter, but not as an option."""
    parameter = inspect.signature(_loader(name)).parameters.get(option)
    return parameter is not None and parameter.kind is not inspect.Parameter.KEYWORD_ONLY


def load(name: str, root: Path | None, **asked: Any) -> Benchmark:
    """Load a benchmark by name.

    Args:
        name: one of `names()`, or `package.module:load`.
        root: the folder of prepared data; None for DAPPERFL_DATA or the user's cache folder.
        asked: options of this benchmark that are not to have their defaults.
    """
    known = options(name)
    for option in asked:
        if option not in known:
            near = did_you_mean(option, known) if known else "; it has none"
            raise ConfigError(f'benchmark "{name}" has no option "{option}"{near}')
    loader = _loader(name)
    try:
        inspect.signature(loader).bind(root, **asked)
    except TypeError as error:
        raise ConfigError(
            f'benchmark "{name}" cannot be called as load(root): {error}; options are keyword-only'
        ) from None
    with _as_a_users(name, root) if ":" in name else nullcontext():
        found = loader(root, **asked)
    if not isinstance(found, Benchmark):
        raise ConfigError(f'benchmark "{name}" returned a {type(found).__name__}, no Benchmark')
    if not found.domains:
        raise ConfigError(f'benchmark "{name}" has no domains; it needs one, with pictures')
    check_parts(found)
    return with_plain_facts(found)


@contextmanager
def _as_a_users(name: str, root: Path | None) -> Iterator[None]:
    """Load in one line if it fails, and the same pictures every time.

    What it draws without a seed of its own would be another test set in every run of a table, and
    a run could not be continued.
    """
    seed = derive_seed(0, "benchmark", name)
    folder = " (data.root is not set)" if root is None else ""
    failed = f'benchmark "{name}" cannot be loaded{folder}'
    with users_code(failed), torch.random.fork_rng(devices=[]), foreign_seeded(seed):
        torch.manual_seed(seed)
        yield


def files_mark(name: str, root: Path | None) -> str | None:
    """Return a short name for the files of a benchmark as they are now; None if none can be told.

    A benchmark's file may have a `files_mark(root)` for that, which does not read the pictures.
    """
    if ":" in name or root is None:
        return None
    told: Callable[[Path], str | None] | None
    told = getattr(importlib.import_module(f"{__name__}.{name}"), "files_mark", None)
    return None if told is None else told(root)


def _loader(name: str) -> Callable[..., Benchmark]:
    loader: Callable[..., Benchmark]
    if ":" in name:
        loader = load_object(name)
    elif name in names():
        loader = importlib.import_module(f"{__name__}.{name}").load
    else:
        raise ConfigError(f'unknown benchmark "{name}"{did_you_mean(name, names())}')
    if not callable(loader):
        raise ConfigError(f'"{name}" is no function; a benchmark is loaded by load(root)')
    return loader


def _hints(name: str, loader: Callable[..., Benchmark], asked: Iterable[str]) -> dict[str, Any]:
    """Return the types of options, whatever else of the signature is only there for a checker."""
    plain = loader.func if isinstance(loader, functools.partial) else loader
    code: Any = inspect.unwrap(plain if inspect.isroutine(plain) else type(plain).__call__)
    wanted = {option: getattr(code, "__annotations__", {}).get(option) for option in asked}
    given = {option: hint for option, hint in wanted.items() if hint is not None}
    known = getattr(code, "__globals__", {})
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__=given), globalns=known, include_extras=True
        )
    except NameError as error:
        raise ConfigError(
            f'benchmark "{name}": the type of an option cannot be read: {error}; import it '
            "where it is there when the program runs"
        ) from error


def _option(parameter: inspect.Parameter, hint: Any) -> Option:
    if parameter.default is inspect.Parameter.empty:
        raise ConfigError(f"option {parameter.name} of a benchmark has no default; give it one")
    if get_origin(hint) is Annotated:
        hint, text, *_ = get_args(hint)
        return Option(hint, parameter.default, str(text))
    return Option(hint, parameter.default, "")
