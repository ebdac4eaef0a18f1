import shutil
from pathlib import Path

import numpy as np
import pytest

from dapperfl.data.sources.survey import survey
from dapperfl.data.sources.syn import find
from dapperfl.errors import DataError
from tests.data.official import read, small, write_images

DIGITS = "0123456789"


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("synthetic_digits/imgs_train", "synthetic_digits/imgs_valid"),
        ("imgs_train", "imgs_valid"),
        ("SYN/train", "SYN/val"),
        ("a/Synthetic-Digits/synthetic_digits/Train", "a/Synthetic-Digits/synthetic_digits/test"),
    ],
)
def test_the_usual_layouts_are_found_and_read_exactly(
    tmp_path: Path, train: str, test: str
) -> None:
    write_images(tmp_path / train, DIGITS, 3)
    written = write_images(tmp_path / test, DIGITS, 2)
    assert read(find, tmp_path, "train").labels.tolist() == np.repeat(np.arange(10), 3).tolist()
    found = read(find, tmp_path, "test")
    assert found.labels.tolist() == np.repeat(np.arange(10), 2).tolist()
    np.testing.assert_array_equal(found.images, np.stack([small(p) for p in written]))


def test_where_there_is_a_test_folder_validation_is_left_alone(tmp_path: Path) -> None:
    for name, per_class in (("train", 1), ("val", 2), ("test", 3)):
        write_images(tmp_path / "syn" / name, DIGITS, per_class)
    assert len(read(find, tmp_path, "test").labels) == 30


def test_digits_of_another_data_set_are_not_taken_for_it(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist_png" / "train", DIGITS, 1)
    assert find(survey(tmp_path), "train") is None


def test_a_folder_that_lacks_a_digit_is_not_it(tmp_path: Path) -> None:
    write_images(tmp_path / "imgs_train", DIGITS, 1)
    shutil.rmtree(tmp_path / "imgs_train" / "7")
    assert find(survey(tmp_path), "train") is None


def test_an_empty_class_and_a_damaged_image_are_named(tmp_path: Path) -> None:
    write_images(tmp_path / "imgs_train", DIGITS, 1)
    damaged = tmp_path / "imgs_train" / "4" / "frame_0000.png"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(DataError, match=str(damaged)):
        read(find, tmp_path, "train")
    damaged.unlink()
    with pytest.raises(DataError, match="imgs_train/4 holds no image"):
        find(survey(tmp_path), "train")
