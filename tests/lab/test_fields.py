"""Loose values into typed fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.fields import Typed, convert, fill
from dapperfl.settings import Range, setting


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (0.5, float, 0.5),
        (True, bool, True),
        ("x", str, "x"),
        ("sum", Literal["sum", "mean"], "sum"),
        (2, Literal[1, 2], 2),
        ([0, 0.5], tuple[float, ...], (0.0, 0.5)),
        ("none", int | None, None),
        (7, int | None, 7),
        ("auto", float | Literal["auto"], "auto"),
        ({"a": 1, "b": 2}, Mapping[str, float], {"a": 1.0, "b": 2.0}),
        ({"a": Typed("3")}, Mapping[str, int] | None, {"a": 3}),
    ],
)
def test_a_fitting_value_is_taken_in_the_type_of_its_field(value, hint, result):
    found = convert(value, hint, "key")
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (True, int, "train.epochs = true: expected a whole number"),
        (3.0, int, "train.epochs = 3.0: expected a whole number"),
        ("3", int, 'train.epochs = "3": expected a whole number'),
        (True, float, "train.epochs = true: expected a finite number"),
        (float("nan"), float, "train.epochs = nan: expected a finite number"),
        (float("inf"), float, "train.epochs = inf: expected a finite number"),
        (10**400, float, "expected a finite number"),
        (1, bool, "train.epochs = 1: expected true or false"),
        (1, str, "train.epochs = 1: expected a string"),
        ("x", int | None, 'train.epochs = "x": expected a whole number or "none"'),
        ("none", int, 'train.epochs = "none": expected a whole number'),
        ("men", Literal["sum", "mean"], 'expected "sum" or "mean"'),
        (True, Literal[1, 2], "train.epochs = true: expected 1 or 2"),
        (0.5, tuple[float, ...], "train.epochs = 0.5: expected a list, each item a finite number"),
        ([0.5, "x"], tuple[float, ...], 'train.epochs[1] = "x": expected a finite number'),
        (3, Mapping[str, int], "train.epochs = 3: expected a table, each value a whole number"),
        ({"a": "x"}, Mapping[str, int], 'train.epochs.a = "x": expected a whole number'),
        ({"a": 1}, int | str, "train.epochs = { a = 1 }: expected a whole number or a string"),
        ({}, dict[str, int], "expected a type that no config file can hold"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_and_what_was_expected(value, hint, message):
    with pytest.raises(ConfigError) as caught:
        convert(value, hint, "train.epochs")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint", "result"),
    [
        ("3", int, 3),
        (".5", float, 0.5),
        ("1e-3", float, 1e-3),
        ("-.5", float, -0.5),
        ("[0, .5]", tuple[float, ...], (0.0, 0.5)),
        ("true", bool, True),
        ("fedavg", str, "fedavg"),
        ('"quoted"', str, "quoted"),
        ("2024", str, "2024"),
        ("true", str, "true"),
        ("./a.5/b", str, "./a.5/b"),
        ("2024-01-01", str | None, "2024-01-01"),
        ("none", str | None, None),
        ("sum", Literal["sum", "mean"], "sum"),
        ("1\nother = 2", str, "1\nother = 2"),
    ],
)
def test_typed_text_means_what_its_field_expects(text, hint, result):
    assert convert(Typed(text), hint, "key") == result


@dataclass(frozen=True)
class Inner:
    share: float = setting(0.5, "a share", Range(above=0, at_most=1))


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    many: tuple[int, ...] = setting((1, 2), "some", Range(1, below=9))
    width: int | None = setting(None, "may be none", Range(1, at_most=1))


def test_fill_changes_nested_fields_and_leaves_the_rest():
    assert fill(Outer(), {"inner": {"share": 1}, "many": [3]}) == Outer(Inner(1.0), (3,))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"iner": {}}, 'unknown key "iner"; did you mean "inner"?'),
        ({"inner": {"shar": 1}}, 'unknown key "inner.shar"; did you mean "share"?'),
        ({"inner": {"q": 1}}, 'unknown key "inner.q"; there are share'),
        ({"inner": 3}, "inner = 3: inner is a table; set one of its keys (inner.…)"),
        ({"inner": Typed("3")}, "inner = 3: inner is a table"),
        ({"many": {"x": 1}}, 'unknown key "many.x": many is not a table'),
    ],
)
def test_fill_refuses_keys_that_do_not_exist(table, message):
    with pytest.raises(ConfigError) as caught:
        fill(Outer(), table)
    assert message in str(caught.value)
