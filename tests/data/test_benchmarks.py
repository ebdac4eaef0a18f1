import functools
import random
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark, Domain, Examples
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


def shuffled(root: Path | None) -> Benchmark:
    """Divide pictures at random, without a seed."""
    held = tiny_examples(12)
    order, share = torch.randperm(12), random.randint(2, 8)
    noise = torch.from_numpy(np.random.randint(0, 256, (12, 3, 6, 6), np.uint8))
    held = Examples(noise, held.labels)
    domain = Domain(held.pick(order[share:]), held.pick(order[:share]), 12)
    return Benchmark("shuffled", {"sky": domain}, ("a", "b", "c"), (0,), (1,))


def test_what_a_loader_draws_is_the_same_every_time_and_nobody_elses_draw_moves() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    made = [benchmarks.load("tests.data.test_benchmarks:shuffled", None).domains["sky"]]
    torch.manual_seed(1)
    made.append(benchmarks.load("tests.data.test_benchmarks:shuffled", None).domains["sky"])
    assert torch.equal(torch.rand(3), expected)
    for first, second in ((made[0].train, made[1].train), (made[0].test, made[1].test)):
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.labels, second.labels)


class Stars:
    def __call__(self, root: Path | None, *, number: Annotated[int, "how many"] = 3) -> Benchmark:
        return stars(root, number=number)


as_object = Stars()
in_part = functools.partial(stars, big=True)


def for_a_checker(root: "NotImported", *, number: "int" = 3) -> "Benchmark":  # type: ignore[name-defined]  # noqa: F821
    return stars(root, number=number)


def of_a_strange_type(root: Path | None, *, number: "NotImported" = 3) -> Benchmark:  # type: ignore[name-defined]  # noqa: F821
    return stars(root, number=number)


def by_position(root: Path | None, number: int = 3) -> Benchmark:
    return stars(root, number=number)


def ends_the_process(root: Path | None) -> Benchmark:
    raise SystemExit("usage: mine")


@pytest.mark.parametrize("name", ["as_object", "in_part", "for_a_checker"])
def test_a_loader_may_be_any_function(name: str) -> None:
    name = f"tests.data.test_benchmarks:{name}"
    assert benchmarks.options(name)["number"].hint is int
    assert len(benchmarks.load(name, None, number=4).domains["sky"].train) == 4


def test_a_parameter_that_is_no_option_is_known() -> None:
    assert benchmarks.is_positional("tests.data.test_benchmarks:by_position", "number")
    assert not benchmarks.is_positional("tests.data.test_benchmarks:stars", "number")
    assert not benchmarks.is_positional("tests.data.test_benchmarks:stars", "absent")


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
        (
            "tests.data.test_benchmarks:without_files",
            {},
            r"loaded \(data\.root is not set\): FileNotFound.*no-such",
        ),
        ("tests.data.test_benchmarks:ends_the_process", {}, "loaded.*: SystemExit: usage: mine;"),
        ("tests.data.test_benchmarks:of_a_strange_type", {}, "option cannot be read: .*NotImp"),
        ("tests.data.test_benchmarks:something_else", {}, "returned a str, no Benchmark"),
    ],
)
def test_what_cannot_be_loaded_says_why(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        benchmarks.load(name, None, **options)
