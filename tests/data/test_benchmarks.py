from pathlib import Path

import pytest

from dapperfl.data import benchmarks
from dapperfl.errors import ConfigError


def test_the_names_are_the_modules_of_the_folder() -> None:
    files = {path.stem for path in Path(benchmarks.__file__).parent.glob("*.py")}
    assert set(benchmarks.names()) == files - {"__init__"}
    assert "minidigits" in benchmarks.names()


def test_every_benchmark_can_be_loaded_by_its_name(minidigits_root: Path) -> None:
    assert benchmarks.load("minidigits", minidigits_root).name == "minidigits"


def test_an_unknown_name_is_answered_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match=r'"minidigit".*did you mean "minidigits"'):
        benchmarks.load("minidigit", None)


def test_a_name_like_no_other_is_answered_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"there are .*minidigits"):
        benchmarks.load("zzz", None)
