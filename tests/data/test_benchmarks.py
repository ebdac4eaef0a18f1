from pathlib import Path
from typing import Annotated, Any

import pytest

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark, Domain
from dapperfl.data.benchmarks import Option
from dapperfl.errors import ConfigError
from tests.tiny import tiny_examples


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


def stars(root: Path | None, *, number: Annotated[int, "how many"] = 3, big=False) -> Benchmark:
    domain = tiny_examples(number)
    return Benchmark("stars", {"sky": Domain(domain, domain, number)}, ("a", "b", "c"), (0,), (1,))


def without_default(root: Path | None, *, number: int) -> Benchmark:
    return stars(root, number=number)


def with_a_shared_key(root: Path | None, *, fraction: float = 0.5) -> Benchmark:
    return stars(root)


def without_root() -> Benchmark:
    return stars(None)


def something_else(root: Path | None) -> str:
    return "stars"


def without_files(root: Path | None) -> Benchmark:
    raise FileNotFoundError("no-such-file")


def without_domains(root: Path | None) -> Benchmark:
    return Benchmark("stars", {}, ("a",), (0,), (1,))


NOT_A_FUNCTION = 3


def test_options_are_the_keyword_only_parameters_of_the_loader() -> None:
    found = benchmarks.options("tests.data.test_benchmarks:stars")
    assert found["number"] == Option(int, 3, "how many")
    assert found["big"] == Option(bool, False, "")
    assert benchmarks.options("minidigits") == {}


def test_every_option_of_every_benchmark_has_help() -> None:
    for name in benchmarks.names():
        assert all(option.help for option in benchmarks.options(name).values()), name


def test_a_benchmark_from_outside_is_loaded_with_its_options() -> None:
    made = benchmarks.load("tests.data.test_benchmarks:stars", None, number=5)
    assert len(made.domains["sky"].train) == 5


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tests.data.test_benchmarks:stars", {"numbr": 1}, '"numbr"; did you mean "number"'),
        ("minidigits", {"size": 1}, 'benchmark "minidigits" has no option "size"; it has none'),
        ("tests.data.test_benchmarks:without_default", {}, "option number .* has no default"),
        ("tests.data.test_benchmarks:with_a_shared_key", {}, r"data\.fraction is a key of all"),
        ("tests.data.test_benchmarks:NOT_A_FUNCTION", {}, "is no function"),
        ("tests.data.test_benchmarks:absent", {}, "cannot load"),
        ("tests.data.test_benchmarks:without_root", {}, r"cannot be called as load\(root\)"),
        ("tests.data.test_benchmarks:without_domains", {}, "has no domains"),
        ("tests.data.test_benchmarks:without_files", {}, "loaded: FileNotFoundError: .*no-such"),
        ("tests.data.test_benchmarks:something_else", {}, "returned a str, no Benchmark"),
    ],
)
def test_what_cannot_be_loaded_says_why(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        benchmarks.load(name, None, **options)
