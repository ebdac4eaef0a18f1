from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dapperfl.data.sources.survey import survey
from dapperfl.data.sources.svhn import find
from dapperfl.errors import DataError
from tests.data.official import pixels, read, write_svhn


@pytest.mark.parametrize("split", ["train", "test"])
def test_pictures_are_exact_and_a_ten_is_a_zero(tmp_path: Path, split: str) -> None:
    written = write_svhn(tmp_path / "SVHN", split)
    found = read(find, tmp_path, split)
    np.testing.assert_array_equal(found.images, written.images)
    np.testing.assert_array_equal(found.labels, written.labels)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    write_svhn(tmp_path, "test")
    assert find(survey(tmp_path), "train") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"X": pixels(28, 28, 3, 20)}, r"\(28, 28, 3, 20\), not uint8"),
        ({"X": pixels(32, 32, 3, 20).astype(float)}, "float64"),
        ({"y": np.ones((19, 1), dtype=np.uint8)}, "20 pictures and 19 labels"),
        ({"y": np.full((20, 1), 11, dtype=np.uint8)}, "label 11 of picture 0"),
        ({"y": np.full((20, 1), 1.5)}, "no whole numbers"),
        ({"y": np.full((20, 1), np.nan)}, "no whole numbers"),
        ({"y": np.array([["a"] * 20], dtype=object)}, "cell array"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    write_svhn(tmp_path, "train", **changes)
    with pytest.raises(DataError, match=said) as caught:
        read(find, tmp_path, "train")
    assert "train_32x32.mat" in str(caught.value)
