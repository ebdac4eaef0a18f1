from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dapperfl.data.sources.office import CLASSES, find
from dapperfl.data.sources.survey import survey
from dapperfl.errors import DataError
from tests.data.official import read, small, write_images

OFFICE_31 = [
    *("back_pack", "bike", "calculator", "headphones", "keyboard"),
    *("laptop_computer", "monitor", "mouse", "mug", "projector"),
]
CALTECH_256 = [
    *("003.backpack", "224.touring-bike", "027.calculator", "101.head-phones"),
    *("045.computer-keyboard", "127.laptop-101", "046.computer-monitor", "047.computer-mouse"),
    *("041.coffee-mug", "238.video-projector"),
]


def test_the_split_is_by_position_in_the_sorted_order(tmp_path: Path) -> None:
    written = write_images(tmp_path / "Office_Caltech_10" / "dslr", tuple(CLASSES), 3)
    labels = np.repeat(np.arange(10), 3)
    for split, kept in (("train", range(8)), ("test", (8, 9))):
        places = [place for place in range(30) if place % 10 in kept]
        found = read(partial(find, "dslr"), tmp_path, split)
        assert found.labels.tolist() == labels[places].tolist()
        np.testing.assert_array_equal(
            found.images, np.stack([small(written[place]) for place in places])
        )


@pytest.mark.parametrize("folder", ["Caltech", "caltech10", "CALTECH_10", "office/caltech/images"])
@pytest.mark.parametrize("names", [list(CLASSES), OFFICE_31, CALTECH_256], ids=["10", "31", "256"])
def test_names_in_their_variants_are_known(tmp_path: Path, folder: str, names: list[str]) -> None:
    written = write_images(tmp_path / folder, [name.upper() for name in names], 1)
    found = read(partial(find, "caltech"), tmp_path, "train")
    assert found.labels.tolist() == list(range(8))
    np.testing.assert_array_equal(found.images[7], small(written[7]))


def test_classes_beyond_the_ten_are_left_out_and_counted(tmp_path: Path) -> None:
    write_images(tmp_path / "amazon" / "images", [*OFFICE_31, "desktop_computer", "pen"], 1)
    found = find("amazon", survey(tmp_path), "train")
    assert found is not None
    assert len(found.files) == 8
    assert "2 folders" in found.remark


def test_a_missing_domain_is_not_found(tmp_path: Path) -> None:
    write_images(tmp_path / "amazon", tuple(CLASSES), 1)
    assert find("webcam", survey(tmp_path), "train") is None


def test_a_missing_class_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "webcam", [name for name in CLASSES if name != "mug"], 1)
    with pytest.raises(DataError, match="webcam has no folder for mug"):
        find("webcam", survey(tmp_path), "train")


def test_two_folders_for_one_class_are_named(tmp_path: Path) -> None:
    write_images(tmp_path / "webcam", [*CLASSES, "back_pack"], 1)
    with pytest.raises(DataError, match=r"back_pack.* are both class backpack"):
        find("webcam", survey(tmp_path), "train")


def test_of_two_folders_the_one_in_office_caltech_is_meant(tmp_path: Path) -> None:
    write_images(tmp_path / "office31" / "dslr" / "images", OFFICE_31, 2)
    write_images(tmp_path / "Office_Caltech_10" / "dslr", tuple(CLASSES), 1)
    found = find("dslr", survey(tmp_path), "train")
    assert found is not None
    assert len(found.files) == 8


def test_two_folders_that_may_be_meant_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / name / "dslr", tuple(CLASSES), 1)
    with pytest.raises(DataError, match=r"a/dslr and .*b/dslr may each be dslr"):
        find("dslr", survey(tmp_path), "train")


def test_a_picture_linked_from_elsewhere_is_refused(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    write_images(data / "dslr", tuple(CLASSES), 1)
    write_images(elsewhere, ["mug"], 1)
    (data / "dslr" / "mug" / "x.png").symlink_to(elsewhere / "mug" / "frame_0000.png")
    with pytest.raises(DataError, match=r"mug/x\.png is a link that leaves"):
        find("dslr", survey(data), "train")
