from pathlib import Path

import numpy as np
import pytest

from dapperfl.data import benchmarks
from dapperfl.data.benchmarks import digits, office_caltech
from dapperfl.data.layout import Layout
from dapperfl.data.prepared import split_path, write_prepared
from dapperfl.errors import DataError
from tests.data.official import pixels

LAYOUTS = [digits.LAYOUT, office_caltech.LAYOUT]


def fill(layout: Layout, root: Path) -> None:
    """Write small files of the sizes and colours that the real ones have."""
    shapes = {"mnist": (28, 28), "usps": (16, 16)}
    for seed, (domain, split) in enumerate(layout.parts()):
        shape = shapes.get(domain, (32, 32, 3))
        arrays = {
            "images": pixels(20, *shape, seed=seed),
            "labels": np.arange(20, dtype=np.uint8) % 10,
            "official_size": np.array(1000 + seed),
        }
        write_prepared(split_path(layout.folder(root), domain, split), arrays)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_all_domains_are_rgb_bytes_of_one_size(layout: Layout, tmp_path: Path) -> None:
    fill(layout, tmp_path)
    benchmark = benchmarks.load(layout.name, tmp_path)
    assert tuple(benchmark.domains) == layout.domains
    for domain in benchmark.domains.values():
        assert domain.train.images.shape == domain.test.images.shape == (20, 3, 32, 32)
    sizes = [domain.official_size for domain in benchmark.domains.values()]
    assert sizes == [1000, 1002, 1004, 1006]


def test_digits_and_office_are_as_the_paper_has_them(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        fill(layout, tmp_path)
    one, other = (benchmarks.load(layout.name, tmp_path) for layout in LAYOUTS)
    assert list(one.domains) == ["mnist", "usps", "svhn", "syn"]
    assert list(other.domains) == ["caltech", "amazon", "webcam", "dslr"]
    assert (one.fraction, other.fraction) == (0.01, 0.2)
    assert (one.flip, other.flip) == (False, True)
    assert one.classes == tuple("0123456789")
    assert list(other.classes) == sorted(other.classes)
    assert (one.mean, one.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_a_colour_picture_of_the_training_size_is_not_changed(tmp_path: Path) -> None:
    fill(digits.LAYOUT, tmp_path)
    images = benchmarks.load("digits", tmp_path).domains["svhn"].train.images
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), pixels(20, 32, 32, 3, seed=4))


def test_every_missing_file_is_named_with_the_commands_that_make_it(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    fill(digits.LAYOUT, root)
    for name in ("usps_test.npz", "syn_train.npz"):
        (root / "digits" / name).unlink()
    with pytest.raises(DataError) as caught:
        benchmarks.load("digits", root)
    said = str(caught.value)
    assert "2 of 8 files" in said
    assert str(root / "digits" / "usps_test.npz") in said
    assert str(root / "digits" / "syn_train.npz") in said
    assert "mnist" not in said
    assert f"dapperfl data prepare digits --from DIR --root '{root}'" in said
    assert "dapperfl data fetch digits" in said


def test_the_default_root_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(digits.LAYOUT, tmp_path)
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path))
    assert len(benchmarks.load("digits", None).domains) == 4


def test_a_damaged_file_and_wrong_class_names_are_named(tmp_path: Path) -> None:
    fill(office_caltech.LAYOUT, tmp_path)
    path = tmp_path / "office_caltech" / "dslr_test.npz"
    labels = np.array([3], dtype=np.uint8)
    names = np.array([*"abcdefghij"])
    write_prepared(path, {"images": pixels(1, 8, 8), "labels": labels, "classes": names})
    with pytest.raises(DataError, match=r"dslr_test\.npz: its classes are \('a', "):
        benchmarks.load("office_caltech", tmp_path)
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=r"dslr_test\.npz cannot be read"):
        benchmarks.load("office_caltech", tmp_path)
