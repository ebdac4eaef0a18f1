"""Somebody's own pictures as a benchmark."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dapperfl.data import benchmarks
from dapperfl.data.benchmark import Benchmark, Examples
from dapperfl.errors import ConfigError, DataError
from tests.data.pictures.trees import plant


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path_factory.mktemp("home")))


def load(root: Path, **options: Any) -> Benchmark:
    return benchmarks.load("folder", root, **options)


def counts(examples: Examples) -> list[int]:
    return examples.labels.bincount(minlength=2).tolist()


def test_domains_and_classes_are_sorted_and_split_class_by_class(tmp_path: Path) -> None:
    plant(tmp_path, {"sketch/dog": 10, "sketch/cat": 5, "photo/dog": 20, "photo/cat": 10})
    data = load(tmp_path)
    assert list(data.domains) == ["photo", "sketch"]
    assert data.classes == ("cat", "dog")
    assert [counts(each.train) for each in data.domains.values()] == [[8, 16], [4, 8]]
    assert [counts(each.test) for each in data.domains.values()] == [[2, 4], [1, 2]]
    assert [each.official_size for each in data.domains.values()] == [24, 12]
    sketch = data.domains["sketch"].train
    assert sketch.images.shape == (12, 3, 32, 32)
    assert sketch.images.dtype == torch.uint8
    # Folder by folder, 40 numbers are set aside for the red channel: cat of sketch is the second.
    assert (sketch.images[:, 0, 0, 0][sketch.labels == 0] // 40 == 1).all()
    assert (sketch.images[:, 0, 0, 0][sketch.labels == 1] // 40 == 0).all()


def test_no_picture_is_in_both_sets_and_none_is_lost(tmp_path: Path) -> None:
    plant(tmp_path, {"photo/cat": 23, "photo/dog": 9})
    domain = load(tmp_path, test_fraction=0.3).domains["photo"]
    train, test = (part.images[:, 0, 0, 0].tolist() for part in (domain.train, domain.test))
    assert sorted(train + test) == [*range(23), *range(40, 49)]
    assert train == sorted(train)
    assert counts(domain.test) == [7, 3]


def test_the_split_depends_on_its_own_seed_only(tmp_path: Path) -> None:
    plant(tmp_path, {"photo/cat": 20, "photo/dog": 20})
    one, again, other = (load(tmp_path, split_seed=seed).domains["photo"] for seed in (0, 0, 1))
    assert torch.equal(one.test.images, again.test.images)
    assert not torch.equal(one.test.images, other.test.images)
    # Another class in the tree changes nothing for this one.
    plant(tmp_path, {"photo/bird": 4})
    wider = load(tmp_path).domains["photo"].test
    assert torch.equal(wider.images[wider.labels > 0], one.test.images)


def test_given_train_and_test_folders_are_kept(tmp_path: Path) -> None:
    plant(tmp_path, {"photo/train/cat": 3, "photo/train/dog": 2, "photo/test/cat": 4})
    domain = load(tmp_path, test_fraction=0.9).domains["photo"]
    assert (counts(domain.train), counts(domain.test)) == ([3, 2], [4, 0])


def test_a_domain_without_test_folder_is_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"train/a/cat": 10, "test/a/cat": 2, "train/b/cat": 10})
    with caplog.at_level(logging.WARNING):
        data = load(tmp_path)
    assert [len(each.test) for each in data.domains.values()] == [2, 2]
    assert "domain b has no test folder" in caplog.text


def test_classes_that_a_domain_lacks_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"photo/cat": 5, "photo/dog": 5, "sketch/dog": 5})
    with caplog.at_level(logging.WARNING):
        data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert counts(data.domains["sketch"].train) == [0, 4]
    assert "domain sketch has no pictures of cat" in caplog.text
    assert "domain photo has no" not in caplog.text


def test_a_class_that_is_in_the_test_only_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {f"{name}/train/{label}": 2 for name in "ab" for label in ("cat", "dog")})
    plant(tmp_path, {f"{name}/test/{label}": 2 for name in "ab" for label in ("cat", "dgo")})
    load(tmp_path)
    assert caplog.messages[1:] == ["no domain has training pictures of dgo, only for the test"]
    assert "training pictures as well" in caplog.messages[0]  # as both trees are planted alike


def test_one_class_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plant(tmp_path, {"photo/cat": 4, "sketch/cat": 4})
    load(tmp_path)
    assert "there is one class only, cat: every model is right" in caplog.text


def test_a_lone_picture_is_for_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plant(tmp_path, {"photo/cat": 1, "photo/dog": 2})
    with caplog.at_level(logging.WARNING):
        domain = load(tmp_path, test_fraction=0.9).domains["photo"]
    assert (counts(domain.train), counts(domain.test)) == ([1, 1], [0, 1])
    assert "domain photo has one picture of cat: for training only" in caplog.text


def test_one_domain_is_a_benchmark_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plant(tmp_path, {"photo/cat": 5})
    with caplog.at_level(logging.WARNING):
        assert list(load(tmp_path).domains) == ["photo"]
    assert "there is one domain only, photo" in caplog.text


def test_unreadable_pictures_are_skipped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"photo/cat": 12, "photo/dog": 12})
    for number in range(8):
        (tmp_path / "photo" / "cat" / f"bad{number}.png").write_text("?")
    with caplog.at_level(logging.WARNING):
        domain = load(tmp_path).domains["photo"]
    assert len(domain.train) + len(domain.test) == 24
    assert "8 of 32 pictures cannot be read" in caplog.text
    assert "photo/cat/bad0.png (cannot identify image file" in caplog.text
    assert "bad4.png" in caplog.text
    assert "bad5.png" not in caplog.text
    assert "and 3 more" in caplog.text


def test_a_domain_that_comes_out_nearly_black_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"photo/cat": 4, "photo/dog": 4, "scan/cat": 4, "scan/dog": 4})
    for path in (tmp_path / "scan").rglob("*.png"):
        Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(path)  # 12 bits of 16
    load(tmp_path)
    assert "8 of 8 pictures of domain scan are nearly black" in caplog.text
    assert "photo" not in caplog.text


def test_test_pictures_that_are_trained_on_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {f"{split}/{domain}/cat": 3 for split in ("train", "test") for domain in "ab"})
    load(tmp_path)
    assert "training pictures as well" not in caplog.text
    shutil.copy(tmp_path / "train/a/cat/000.png", tmp_path / "test/b/cat/copy.png")
    load(tmp_path)  # in another domain, which may be held out
    assert "1 of 7 test pictures are training pictures as well" in caplog.text
    assert "to the last pixel, and easier for that: test/b/cat/copy.png; remove" in caplog.text


def test_a_class_of_mostly_unreadable_pictures_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, {"photo/cat": 2, "photo/dog": 9})
    for number in range(3):
        (tmp_path / "photo" / "cat" / f"bad{number}.png").write_text("?")
    with pytest.raises(DataError, match=r"more than half of photo/cat in .*bad0\.png"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"photo/cat": 1, "photo/dog": 1}, "domain photo would have no test pictures"),
        ({"photo/test/cat": 3}, "domain photo would have no training pictures"),
    ],
)
def test_a_domain_without_one_of_the_sets_is_refused(
    tmp_path: Path, layout: dict[str, int], said: str
) -> None:
    plant(tmp_path, layout)
    with pytest.raises(DataError, match=said):
        load(tmp_path)


def test_size_and_mirroring_are_options(tmp_path: Path) -> None:
    plant(tmp_path, {"photo/cat": 3})
    data = load(tmp_path, size=5, flip=True)
    assert data.domains["photo"].train.images.shape[1:] == (3, 5, 5)
    assert data.flip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "data.size = 0"),
        ({"size": 5000}, "data.size = 5000"),
        ({"test_fraction": 0.0}, "data.test_fraction = 0.0"),
        ({"test_fraction": 1.0}, "data.test_fraction = 1.0"),
        ({"sise": 4}, 'benchmark "folder" has no option "sise"; did you mean "size"'),
    ],
)
def test_a_bad_option_is_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    plant(tmp_path, {"photo/cat": 3})
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, **options)


def test_a_folder_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"--set data\.root=DIR"):
        benchmarks.load("folder", None)
