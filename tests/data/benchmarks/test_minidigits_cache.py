import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dapperfl.data import drawing
from dapperfl.data.benchmark import Benchmark
from dapperfl.data.benchmarks import minidigits as module
from dapperfl.data.prepared import read_prepared
from dapperfl.errors import DataError


@pytest.fixture
def root(minidigits_root: Path, tmp_path: Path) -> Path:
    """A copy of the cache that a test may damage."""
    shutil.copytree(minidigits_root, tmp_path / "data")
    return tmp_path / "data"


def read(root: Path, domain: str, split: str) -> Any:
    return read_prepared(root / "minidigits" / f"{domain}_{split}.npz", num_classes=10)


def test_a_whole_cache_is_read_and_needs_no_optional_package(
    root: Path, minidigits: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("sklearn.datasets", "matplotlib", "PIL"):
        monkeypatch.setitem(sys.modules, package, None)
    again = module.load(root)
    assert torch.equal(
        again.domains["street"].test.images, minidigits.domains["street"].test.images
    )


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "fewer"])
def test_a_damaged_cache_is_drawn_again(
    root: Path, minidigits: Benchmark, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = root / "minidigits" / "photo_test.npz"
    whole = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(whole[:-1000])
    elif damage == "flipped":
        path.write_bytes(whole[:50_000] + bytes([whole[50_000] ^ 1]) + whole[50_001:])
    elif damage == "missing":
        path.unlink()
    else:
        arrays = dict(read(root, "photo", "test"))
        np.savez(path, **(arrays | {key: arrays[key][:7] for key in ("images", "labels")}))
    with caplog.at_level(logging.WARNING):
        again = module.load(root)
    assert torch.equal(again.domains["photo"].test.images, minidigits.domains["photo"].test.images)
    assert path.read_bytes() == whole
    assert ("photo_test.npz" in caplog.text) == (damage in ("truncated", "flipped"))


def test_a_cache_of_other_drawing_code_is_not_used(root: Path, minidigits: Benchmark) -> None:
    path = root / "minidigits" / "print_test.npz"
    stale = dict(read(root, "print", "test"))
    stale |= {"images": stale["images"] * 0, "version": np.array("other")}
    np.savez(path, **stale)
    again = module.load(root)
    assert torch.equal(again.domains["print"].test.images, minidigits.domains["print"].test.images)
    assert str(read(root, "print", "test")["version"]) == module.version()


def test_without_a_cache_folder_the_benchmark_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PER_CLASS", {"train": 2, "test": 1})
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        made = module.load(blocked)
    assert len(made.domains["street"].train) == 20
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.parametrize(
    ("domain", "package"),
    [("handwriting", "sklearn.datasets"), ("print", "matplotlib"), ("street", "PIL")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    domain: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=rf'{package}.*pip install "dapperfl\[demo\]"'):
        module.draw(domain, "test")


def test_a_missing_font_is_named() -> None:
    with pytest.raises(DataError, match=r"NoSuchFont\.ttf"):
        drawing.glyphs(["NoSuchFont.ttf"])
