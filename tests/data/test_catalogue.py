import re

import pytest

from dapperfl.data.catalogue import CATALOGUE, origins
from dapperfl.data.prepare import LAYOUTS, READERS
from dapperfl.errors import ConfigError

SIZES = {  # the sizes of the official splits
    ("digits", "mnist"): (60_000, 10_000),
    ("digits", "usps"): (7_291, 2_007),
    ("digits", "svhn"): (73_257, 26_032),
    ("office_caltech", "caltech"): (899, 224),
    ("office_caltech", "amazon"): (768, 190),
    ("office_caltech", "webcam"): (237, 58),
    ("office_caltech", "dslr"): (127, 30),
}


def test_catalogue_readers_and_layouts_name_the_same_domains() -> None:
    assert set(CATALOGUE) == set(READERS) == set(LAYOUTS)
    for name, layout in LAYOUTS.items():
        assert tuple(CATALOGUE[name]) == tuple(READERS[name]) == layout.domains


def test_the_counts_of_classes_add_up_to_the_official_sizes() -> None:
    found = {
        (name, domain): tuple(sum(origin.counts[split]) for split in ("train", "test"))
        for name, known in CATALOGUE.items()
        for domain, origin in known.items()
        if origin.counts
    }
    assert found == SIZES


def test_office_counts_are_those_of_the_split_by_position() -> None:
    for domain, origin in CATALOGUE["office_caltech"].items():
        train, test = origin.counts["train"], origin.counts["test"]
        labels = [label for label in range(10) for _ in range(train[label] + test[label])]
        kept = [label for place, label in enumerate(labels) if place % 10 <= 7]
        assert tuple(kept.count(label) for label in range(10)) == train, domain


def test_every_download_has_a_checksum_a_size_and_addresses() -> None:
    items = [
        item
        for known in CATALOGUE.values()
        for origin in known.values()
        for item in origin.downloads
    ]
    assert len(items) == len({item.name for item in items}) == 8
    for item in items:
        assert re.fullmatch("[0-9a-f]{32}", item.md5)
        assert item.size > 1000
        assert all(url.startswith("http") and url.endswith(f"/{item.name}") for url in item.urls)


def test_what_cannot_be_downloaded_says_how_to_get_it() -> None:
    for known in CATALOGUE.values():
        for origin in known.values():
            assert origin.licence
            assert origin.citation
            assert origin.downloads or "no" in origin.by_hand.split()


def test_an_unknown_benchmark_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match='did you mean "office_caltech"'):
        origins("office-caltech")
