import os
from pathlib import Path

import pytest

from dapperfl.data.sources import survey as module
from dapperfl.data.sources.survey import plain, survey
from dapperfl.errors import DataError


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.jpg").write_bytes(b"x")
    return folder


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    (folder / "b" / "deep").mkdir(parents=True)
    for name in ("z.jpg", "b/2.jpg", "b/10.jpg", "b/deep/1.jpg"):
        (folder / name).write_bytes(b"x")
    return folder


def test_files_come_in_the_order_of_an_image_folder(inside: Path) -> None:
    found = survey(inside)
    names = [path.relative_to(inside).as_posix() for path in found.inside(inside / "b")]
    assert names == ["b/10.jpg", "b/2.jpg", "b/deep/1.jpg"]


def test_a_folder_is_not_mixed_up_with_one_whose_name_begins_alike(inside: Path) -> None:
    (inside / "bb").mkdir()
    (inside / "bb" / "1.jpg").write_bytes(b"x")
    assert len(survey(inside).inside(inside / "b")) == 3


def test_names_are_found_whatever_their_case_outermost_first(inside: Path) -> None:
    (inside / "b" / "Z.JPG").write_bytes(b"x")
    found = survey(inside).named(["z.jpg"])
    assert found == [inside / "z.jpg", inside / "b" / "Z.JPG"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_that_leaves_the_folder_is_not_followed_but_named(
    inside: Path, outside: Path, kind: str
) -> None:
    target = outside / "secret.jpg" if kind == "file" else outside
    (inside / "b" / "link.jpg").symlink_to(target)
    found = survey(inside)
    assert not [path for path in found.files if "secret" in path.name or "link" in path.name]
    assert [path.name for path, _ in found.refused] == ["link.jpg"]
    with pytest.raises(DataError, match=r"link\.jpg is a link that leaves"):
        found.inside(inside / "b")
    assert found.inside(inside / "b" / "deep")


def test_links_that_stay_inside_and_loops_do_no_harm(inside: Path) -> None:
    (inside / "alias.jpg").symlink_to(inside / "z.jpg")
    (inside / "loop").symlink_to(inside)
    (inside / "self").symlink_to(inside / "self")
    found = survey(inside)
    assert len(found.files) == 5
    assert found.refused == ()


def test_a_pipe_is_never_opened(inside: Path) -> None:
    os.mkfifo(inside / "train_32x32.mat")
    assert survey(inside).named(["train_32x32.mat"]) == []


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere is not a folder"):
        survey(tmp_path / "nowhere")


def test_far_too_many_entries_are_refused(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 4)
    with pytest.raises(DataError, match="more than 4 entries"):
        survey(inside)


def test_a_plain_name_has_neither_case_nor_separators() -> None:
    assert plain("Back_Pack") == plain("back-pack") == plain("BackPack ") == "backpack"
