from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest

from dapperfl.errors import ConfigError
from dapperfl.settings import Range, check_settings, setting


@dataclass(frozen=True)
class Owner:
    share: float = setting(0.5, "a share", Range(above=0, at_most=1))
    many: tuple[int, ...] = setting((1, 2), "some", Range(1, below=9))
    width: int | None = setting(None, "may be none", Range(1, at_most=1))
    kind: Literal["a", "b"] = setting("a", "a choice")
    free: str = "anything"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 0.0}, "x.share = 0.0: expected above 0 and at most 1"),
        ({"share": float("nan")}, "x.share = nan: expected above 0 and at most 1"),
        ({"many": (1, 9)}, "x.many = [1, 9]: expected at least 1 and below 9"),
        ({"width": 2}, "x.width = 2: expected 1"),
        ({"kind": "c"}, "x.kind = c: expected one of a, b"),
    ],
)
def test_values_outside_their_range_or_choices_are_refused(changes: dict[str, Any], message):
    with pytest.raises(ConfigError) as caught:
        check_settings(Owner(**changes), "x.")
    assert str(caught.value) == message


def test_values_inside_their_range_and_none_are_accepted():
    check_settings(Owner(1.0, (1, 8), None))
    check_settings(Owner(width=1))


def test_help_and_range_are_kept_with_the_field():
    about = fields(Owner)[0].metadata
    assert about["help"] == "a share"
    assert str(about["range"]) == "above 0 and at most 1"
