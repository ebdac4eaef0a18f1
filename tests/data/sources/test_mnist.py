from pathlib import Path

import numpy as np
import pytest

from dapperfl.data.sources.mnist import find
from dapperfl.data.sources.survey import survey
from dapperfl.errors import DataError
from tests.data.official import idx, pixels, read, write_mnist


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("split", ["train", "test"])
def test_pictures_and_labels_are_exact(tmp_path: Path, split: str, packed: bool) -> None:
    written = write_mnist(tmp_path / "MNIST" / "raw", split, packed=packed)
    found = read(find, tmp_path, split)
    np.testing.assert_array_equal(found.images, written.images)
    np.testing.assert_array_equal(found.labels, written.labels)


def test_the_names_with_a_dot_are_known_too(tmp_path: Path) -> None:
    write_mnist(tmp_path, "train")
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx").upper())
    assert len(read(find, tmp_path, "train").labels) == 20


def test_another_data_set_with_the_same_names_is_not_taken_for_it(tmp_path: Path) -> None:
    write_mnist(tmp_path / "FashionMNIST" / "raw", "train", 30)
    assert find(survey(tmp_path), "train") is None
    write_mnist(tmp_path / "z" / "MNIST" / "raw", "train", 20)
    assert len(read(find, tmp_path, "train").labels) == 20


def test_pictures_without_labels_beside_them_are_not_found(tmp_path: Path) -> None:
    write_mnist(tmp_path / "a", "train")
    (tmp_path / "a" / "train-labels-idx1-ubyte").rename(tmp_path / "train-labels-idx1-ubyte")
    assert find(survey(tmp_path), "train") is None


def test_files_that_do_not_belong_together_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path, "train")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(pixels(19)))
    with pytest.raises(DataError, match=r"20 pictures and .*labels-idx1-ubyte 19 labels"):
        read(find, tmp_path, "train")


def test_labels_and_sizes_that_mnist_does_not_have_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path, "train", 2)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.array([3, 10], dtype=np.uint8)))
    with pytest.raises(DataError, match="label 10 of picture 1"):
        read(find, tmp_path, "train")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(pixels(2, 32, 32)))
    with pytest.raises(DataError, match=r"\(32, 32\), MNIST's are \(28, 28\)"):
        read(find, tmp_path, "train")
