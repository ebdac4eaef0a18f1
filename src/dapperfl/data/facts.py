"""What somebody's own `load` says about its pictures, as plain numbers and names.

A mean that numpy or torch has computed is a number like any other; but it cannot be written into
the files of a run, and what is none would show only there, or as a loss of nan.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, SupportsFloat

import torch

from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.errors import DataError


def with_plain_facts(found: Benchmark) -> Benchmark:
    """Return the same benchmark with plain numbers, names and labels.

    Raises:
        DataError: names the first fact that is none, and what is expected.
    """
    _require(isinstance(found.name, str), "name", found.name, "a text")
    fraction = _number(found.fraction)
    if fraction is None or not 0 < fraction <= 1:
        raise _wrong("fraction", found.fraction, "above 0 and at most 1, as data.fraction is")
    return replace(
        found,
        domains={name: _domain(name, each) for name, each in found.domains.items()},
        classes=_names(found.classes),
        mean=_numbers("mean", found.mean),
        std=_numbers("std", found.std),
        fraction=fraction,
        flip=_flag("flip", found.flip),
        pad=_count("pad", found.pad, least=0),
        repair_labels=_flag("repair_labels", found.repair_labels),
    )


def _wrong(what: str, value: object, expected: str) -> DataError:
    return DataError(f"{what} = {value!r}: expected {expected}")


def _require(holds: bool, what: str, value: object, expected: str) -> None:
    if not holds:
        raise _wrong(what, value, expected)


def _domain(name: str, domain: Domain) -> Domain:
    train = _countable(domain.train)
    size = _count(f"official_size of {name}", domain.official_size, least=min(len(train), 1))
    return Domain(train, domain.test, size)  # who may not look at the test yet loads it as well


def _countable(examples: Examples) -> Examples:
    """Return the examples with labels of one type; those that are no integers are told later."""
    labels = examples.labels
    if labels.is_floating_point() or labels.is_complex():
        return examples
    return replace(examples, labels=labels.to(torch.int64))


def _names(classes: Any) -> tuple[str, ...]:
    found = classes.tolist() if hasattr(classes, "tolist") else classes
    _require(
        isinstance(found, tuple | list | range) and len(found) > 0,
        *("classes", classes, "the names of the classes in the order of their labels, a tuple"),
    )
    return tuple(map(str, found))


def _numbers(what: str, values: Any) -> tuple[float, ...]:
    found = [_number(value) for value in values]
    plain = tuple(number for number in found if number is not None and isfinite(number))
    if len(plain) < len(found):
        raise _wrong(what, tuple(values), "a finite number for each channel")
    return plain


def _number(value: object) -> float | None:
    """Return a number as Python has it, whoever has computed it; None if it is none."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # an array of several numbers
        return None


def _count(what: str, value: object, *, least: int) -> int:
    number = _number(value)
    if number is None or not isfinite(number) or number != int(number) or number < least:
        raise _wrong(what, value, f"a whole number, at least {least}")
    return int(number)


def _flag(what: str, value: Any) -> bool:
    plain = value.item() if hasattr(value, "item") else value  # as numpy and torch have them
    _require(isinstance(plain, bool), what, value, "True or False")
    return bool(plain)


def check_domains(domains: object) -> None:
    """Refuse what does not name domains.

    Raises:
        DataError: names the first thing that is none.
    """
    if not isinstance(domains, Mapping):
        kind = type(domains).__name__
        raise DataError(f"domains are a {kind}: expected a dict of Domain(…) by name")
    for name, domain in domains.items():
        if not isinstance(name, str):
            raise DataError(f"domain {name!r}: its name is a {type(name).__name__}, not a text")
        if not name.strip():
            raise DataError(f"domain {name!r}: its name is empty; tables need one")
        if not isinstance(domain, Domain):
            kind = type(domain).__name__
            raise DataError(
                f"domain {name}: expected Domain(train, test, official_size), not {kind}"
            )
