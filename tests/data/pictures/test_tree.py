import logging
import os
from pathlib import Path
from unicodedata import normalize

import pytest

from dapperfl.data.pictures.tree import find_pictures, listing_mark
from dapperfl.errors import DataError
from tests.data.pictures.trees import picture, plant


def found(root: Path) -> list[tuple[str, str, str | None, str]]:
    return [(each.domain, each.label, each.split, each.path.name) for each in find_pictures(root)]


def test_pictures_come_sorted_by_domain_class_and_name(tmp_path: Path) -> None:
    plant(tmp_path, {"sketch/dog": 2, "photo/dog": 1, "photo/cat": 1})
    assert found(tmp_path) == [
        ("photo", "cat", None, "000.png"),
        ("photo", "dog", None, "000.png"),
        ("sketch", "dog", None, "000.png"),
        ("sketch", "dog", None, "001.png"),
    ]


@pytest.mark.parametrize("layout", ["{domain}/{split}/cat", "{split}/{domain}/cat"])
def test_train_and_test_may_be_inside_or_around_domains(tmp_path: Path, layout: str) -> None:
    folders = [
        layout.format(domain=domain, split=split)
        for domain in ("photo", "sketch")
        for split in ("Train", "test")
    ]
    plant(tmp_path, dict.fromkeys(folders, 1))
    assert sorted(found(tmp_path)) == [
        (domain, "cat", split, "000.png")
        for domain in ("photo", "sketch")
        for split in ("test", "train")
    ]


@pytest.mark.parametrize("layout", ["{}/images/{}", "train/{}/images/{}"])
def test_classes_may_lie_in_a_folder_that_all_domains_have(tmp_path: Path, layout: str) -> None:
    """As in Office-31."""
    folders = [layout.format(domain, label) for domain in ("amazon", "dslr") for label in "ab"]
    plant(tmp_path, dict.fromkeys(folders, 1))
    assert [(domain, label) for domain, label, *_ in found(tmp_path)] == [
        ("amazon", "a"), ("amazon", "b"), ("dslr", "a"), ("dslr", "b")
    ]  # fmt: skip


def test_the_only_class_of_a_domain_is_no_wrapping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"photo/cat": 1, "photo/cat/old": 1, "sketch/cat": 1, "sketch/cat/old": 1})
    assert [(domain, label) for domain, label, *_ in found(tmp_path)] == [
        ("photo", "cat"), ("sketch", "cat")
    ]  # fmt: skip
    assert "photo/cat/old (a folder inside a class folder)" in caplog.text


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    plant(tmp_path, {"photo/train": 2, "photo/bus": 1})
    assert [(label, split) for _, label, split, _ in found(tmp_path)] == [
        ("bus", None),
        ("train", None),
        ("train", None),
    ]


def test_hidden_files_and_other_files_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"photo/cat": 1, ".git/cat": 1, "photo/.cache": 1})
    for name in ("README.txt", "photo/labels.csv", "photo/cat/Thumbs.db", "photo/cat/.hidden.png"):
        (tmp_path / name).write_text("?")
    os.mkfifo(tmp_path / "photo" / "cat" / "pipe.png")
    assert found(tmp_path) == [("photo", "cat", None, "000.png")]
    assert caplog.text == ""


def test_pictures_of_a_format_that_is_not_read_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"photo/cat": 2, "phone/cat": 0})
    (tmp_path / "photo/cat/000.png").rename(tmp_path / "photo/cat/000.JFIF")
    (tmp_path / "phone/cat/1.HEIC").write_text("?")
    assert [name for *_, name in found(tmp_path)] == ["000.JFIF", "001.png"]
    assert "phone/cat/1.HEIC (a format that is not read; convert it)" in caplog.text


def test_folders_without_pictures_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"photo/cat": 1, "scan/cat": 0, "sketch": 0})
    (tmp_path / "scan/cat/1.npy").write_text("?")
    assert len(found(tmp_path)) == 1
    assert "scan/cat (no pictures in it), sketch (no class folders in it)" in caplog.text


def test_a_folder_whose_name_no_file_of_results_can_hold_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, {"photo/été 夏": 1})
    assert found(tmp_path) == [("photo", "été 夏", None, "000.png")]
    (tmp_path / "photo" / os.fsdecode(b"\xe9t\xe9")).mkdir()
    with pytest.raises(DataError, match=r"udce9t.* has no name in UTF-8; rename it"):
        found(tmp_path)


def test_a_class_is_the_same_however_its_accents_are_stored(tmp_path: Path) -> None:
    plant(tmp_path, {f"photo/{normalize('NFC', 'café')}": 1, f"scan/{normalize('NFD', 'café')}": 1})
    assert {label for _, label, *_ in found(tmp_path)} == {normalize("NFC", "café")}


def test_links_are_followed_within_the_tree_and_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = plant(tmp_path / "outside", {"cat": 3})
    root = plant(tmp_path / "root", {"photo/cat": 1, "photo/dog": 1})
    cat = root / "photo" / "cat"
    (cat / "again.png").symlink_to(root / "photo" / "dog" / "000.png")
    (cat / "stolen.png").symlink_to(outside / "cat" / "000.png")
    (cat / "broken.png").symlink_to(root / "nothing.png")
    (cat / "circle.png").symlink_to(cat / "circle.png")
    (root / "sketch").symlink_to(outside)
    with caplog.at_level(logging.WARNING):
        names = [(label, name) for _, label, _, name in found(root)]
    assert names == [("cat", "000.png"), ("cat", "again.png"), ("dog", "000.png")]
    assert len(caplog.records) == 1
    for skipped in ("sketch", "photo/cat/stolen.png", "photo/cat/broken.png", "photo/cat/circle"):
        assert skipped in caplog.text


def test_what_is_beside_the_layout_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, {"a/train/cat": 1, "a/test/cat": 1, "a/val/cat": 1, "b/cat/kittens": 1})
    plant(tmp_path, {"b/cat": 1})
    with caplog.at_level(logging.WARNING):
        assert len(found(tmp_path)) == 3
    assert "a/val (a folder beside train and test)" in caplog.text
    assert "b/cat/kittens (a folder inside a class folder)" in caplog.text


@pytest.mark.parametrize("where", [".", "photo", "photo/train"])
def test_pictures_above_the_class_folders_are_refused(tmp_path: Path, where: str) -> None:
    plant(tmp_path, {"photo/train/cat": 1, "photo/test/cat": 1})
    picture(1).save(tmp_path / where / "stray.png")
    said = f"{(tmp_path / where).name} holds pictures that are in no class folder.*stray.png;"
    with pytest.raises(DataError, match=said):
        find_pictures(tmp_path)


def test_pictures_directly_in_a_top_train_folder_are_refused(tmp_path: Path) -> None:
    plant(tmp_path, {"train/photo/cat": 1, "test/photo/cat": 1})
    picture(1).save(tmp_path / "train" / "stray.png")
    with pytest.raises(DataError, match="train holds pictures that are in no class folder"):
        find_pictures(tmp_path)


def test_a_tree_without_class_folders_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, {"cat": 2, "dog": 2})
    with pytest.raises(DataError, match=r"cat holds pictures.*also where there is one domain only"):
        find_pictures(tmp_path)


def test_a_tree_that_lies_one_folder_deeper_is_named(tmp_path: Path) -> None:
    plant(tmp_path, {"PACS/photo/cat": 1, "PACS/art/cat": 1, "splits/a": 0})
    with pytest.raises(DataError, match=r"no pictures in it; .*/PACS looks like it: name that"):
        find_pictures(tmp_path)
    plant(tmp_path, {"VLCS/photo/cat": 1})
    with pytest.raises(DataError, match=r"<image>$"):  # which of the two, nobody knows
        find_pictures(tmp_path)


def test_an_empty_tree_and_no_tree_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photo" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no pictures in it; expected <domain>/<class>/<image>"):
        find_pictures(tmp_path)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        find_pictures(tmp_path / "nowhere")


def test_a_listing_changes_with_names_and_sizes_and_not_with_times(tmp_path: Path) -> None:
    cat = plant(tmp_path, {"photo/cat": 2}) / "photo" / "cat"
    before = listing_mark(tmp_path)
    os.utime(cat / "000.png", (1, 1))
    (cat / "notes.txt").write_text("?")
    assert listing_mark(tmp_path) == before
    (cat / "000.png").rename(cat / "002.png")
    renamed = listing_mark(tmp_path)
    picture(1, side=99).save(cat / "001.png")
    grown = listing_mark(tmp_path)
    picture(1).save(tmp_path / "stray.png")  # no tree that can be read
    assert len({before, renamed, grown, listing_mark(tmp_path), None}) == 5
    assert listing_mark(tmp_path / "nowhere") is None


def test_a_domain_is_the_same_however_its_accents_are_stored(tmp_path: Path) -> None:
    one, other = (normalize(form, "hôpital") for form in ("NFD", "NFC"))
    plant(tmp_path, {f"train/{one}/cat": 1, f"test/{other}/cat": 1})
    assert {domain for domain, *_ in found(tmp_path)} == {normalize("NFC", "hôpital")}
