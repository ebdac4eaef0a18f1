from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.data.checking import check_parts
from dapperfl.data.facts import with_plain_facts
from dapperfl.errors import DataError
from tests.tiny import tiny_examples

HELD = tiny_examples(6)
SEA = Domain(HELD, HELD, 6)
OWN = Benchmark("own", {"sea": SEA}, ("a", "b", "c"), (0.5,) * 3, (0.2,) * 3)


def from_numpy(root: None) -> Benchmark:
    levels = HELD.images.numpy() / np.float32(255)
    return replace(
        OWN,
        domains={"sea": Domain(HELD, HELD, np.int64(6))},  # type: ignore[arg-type]
        classes=np.array([7, 8, 9]),  # type: ignore[arg-type]
        mean=tuple(levels.mean((0, 2, 3))),
        std=tuple(torch.from_numpy(levels).std((0, 2, 3))),
        flip=np.bool_(True),  # type: ignore[arg-type]
    )


def test_numbers_that_numpy_or_torch_have_computed_become_plain_ones() -> None:
    made = benchmarks.load("tests.data.test_facts:from_numpy", None)
    assert made.classes == ("7", "8", "9")
    assert made.mean == pytest.approx((HELD.images / 255).mean((0, 2, 3)).tolist())
    assert {type(each) for each in (*made.mean, *made.std)} == {float}
    assert made.flip is True
    assert type(made.domains["sea"].official_size) is int
    assert with_plain_facts(OWN) == OWN


@pytest.mark.parametrize("kind", [torch.bool, torch.uint16, torch.int8])
def test_labels_of_any_integers_become_of_one_type(kind: torch.dtype) -> None:
    held = Examples(HELD.images, (HELD.labels % 2).to(kind))
    labels = with_plain_facts(replace(OWN, domains={"sea": Domain(held, held, 6)})).domains["sea"]
    assert labels.train.labels.tolist() == [0, 1, 0, 0, 1, 0]
    assert labels.train.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("name", None, "a text"),
        ("classes", "abc", "the names of the classes"),
        ("classes", {"a": 0}, "the names of the classes"),
        ("classes", 3, "the names of the classes"),
        ("classes", (), "the names of the classes"),
        ("mean", (0.5, float("nan"), 0.5), "a finite number for each channel"),
        ("std", ("0.2",), "a finite number for each channel"),
        ("std", (None,), "a finite number for each channel"),
        ("fraction", None, "above 0 and at most 1"),
        ("fraction", float("nan"), "above 0 and at most 1"),
        ("fraction", 2.0, "above 0 and at most 1"),
        ("flip", "false", "True or False"),
        ("repair_labels", None, "True or False"),
        ("pad", -1, "a whole number, at least 0"),
        ("pad", (0, 4), "a whole number, at least 0"),
        ("pad", 2.5, "a whole number, at least 0"),
    ],
)
def test_what_is_no_fact_is_named(field: str, value: Any, expected: str) -> None:
    with pytest.raises(DataError, match=f"^{field} = .*: expected {expected}"):
        with_plain_facts(replace(OWN, **{field: value}))


@pytest.mark.parametrize("size", [None, "40", 0, -3, float("nan")])
def test_the_size_of_a_domain_is_a_number_of_pictures(size: Any) -> None:
    with pytest.raises(DataError, match=r"^official_size of sea = .*: expected a whole number"):
        with_plain_facts(replace(OWN, domains={"sea": Domain(HELD, HELD, size)}))


def test_a_domain_that_is_only_tested_on_may_have_no_size() -> None:
    bare = Domain(HELD.pick(torch.arange(0)), HELD, 0)
    assert with_plain_facts(replace(OWN, domains={"sea": bare})).domains["sea"].official_size == 0


@pytest.mark.parametrize(
    ("domains", "said"),
    [
        ([SEA], r"domains are a list: expected a dict of Domain\(…\) by name"),
        ({"sea": (HELD, HELD)}, r"domain sea: expected Domain\(.*\), not tuple"),
        ({"": SEA}, "its name is empty"),
    ],
)
def test_what_names_no_domains_is_told(domains: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        check_parts(replace(OWN, domains=domains))
