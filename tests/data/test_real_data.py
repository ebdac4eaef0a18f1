"""The real benchmarks, where DAPPERFL_TEST_DATA names a root that has them prepared."""

import os
from pathlib import Path

import pytest
import torch

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark
from dapperfl.data.catalogue import CATALOGUE

ROOT = os.environ.get("DAPPERFL_TEST_DATA")
pytestmark = pytest.mark.skipif(not ROOT, reason="DAPPERFL_TEST_DATA is not set")


def load(name: str) -> Benchmark:
    return benchmarks.load(name, Path(str(ROOT)))


def test_digits_has_the_official_sizes_and_no_more_pictures_than_those() -> None:
    domains = load("digits").domains
    official = {name: domain.official_size for name, domain in domains.items()}
    assert official == {"mnist": 60_000, "usps": 7_291, "svhn": 73_257, "syn": 10_000}
    assert all(len(domain.train) <= domain.official_size for domain in domains.values())
    assert (len(domains["usps"].train), len(domains["usps"].test)) == (7_291, 2_007)
    assert len(domains["mnist"].test) == 10_000


def test_office_has_the_official_sizes() -> None:
    domains = load("office_caltech").domains
    sizes = {name: (len(domain.train), len(domain.test)) for name, domain in domains.items()}
    assert sizes == {
        "caltech": (899, 224),
        "amazon": (768, 190),
        "webcam": (237, 58),
        "dslr": (127, 30),
    }


@pytest.mark.parametrize("name", ["digits", "office_caltech"])
def test_pictures_are_rgb_bytes_of_32_pixels_and_every_class_is_there(name: str) -> None:
    benchmark = load(name)
    for domain in benchmark.domains.values():
        for examples in (domain.train, domain.test):
            assert examples.images.dtype == torch.uint8
            assert examples.images.shape[1:] == (3, 32, 32)
            assert examples.labels.unique().tolist() == list(range(10))


def test_whole_splits_have_the_official_number_of_pictures_of_each_class() -> None:
    compared = 0
    for name, known in CATALOGUE.items():
        domains = load(name).domains
        for domain, origin in known.items():
            for split, counts in origin.counts.items():
                labels = getattr(domains[domain], split).labels
                if len(labels) == sum(counts):
                    assert tuple(labels.bincount(minlength=10).tolist()) == counts
                    compared += 1
    assert compared >= 10


def test_office_pictures_are_in_sorted_order() -> None:
    for domain in load("office_caltech").domains.values():
        for examples in (domain.train, domain.test):
            assert torch.equal(examples.labels, examples.labels.sort().values)
