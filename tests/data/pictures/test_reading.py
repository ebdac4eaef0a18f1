import pytest
import torch
from PIL import Image

from dapperfl import read_pictures
from dapperfl.errors import DataError


def test_pictures_are_squares_of_bytes_channels_first(tmp_path):
    Image.new("RGB", (30, 10), (255, 0, 7)).save(tmp_path / "a.png")
    Image.new("L", (4, 4), 9).save(tmp_path / "b.png")
    found = read_pictures([tmp_path / "a.png", str(tmp_path / "b.png")], side=8)
    assert found.shape == (2, 3, 8, 8)
    assert found.dtype == torch.uint8
    assert found.is_contiguous()
    assert found[0].flatten(1).unique(dim=1).flatten().tolist() == [255, 0, 7]
    assert found[1].unique().tolist() == [9]


def test_a_file_that_is_no_picture_is_named(tmp_path):
    (tmp_path / "note.png").write_text("not a picture")
    with pytest.raises(DataError, match=r"note\.png cannot be read: .*; leave it out"):
        read_pictures([tmp_path / "note.png"], side=8)


def test_no_files_at_all_are_a_mistake(tmp_path):
    with pytest.raises(DataError, match="no pictures to read"):
        read_pictures(tmp_path.glob("*.png"), side=8)


def test_a_single_path_is_no_list_of_files(tmp_path):
    for path in (tmp_path / "a.png", str(tmp_path / "a.png")):
        with pytest.raises(DataError, match=r"a\.png is one path; read_pictures takes a list"):
            read_pictures(path, side=8)
