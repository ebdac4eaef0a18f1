import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from dapperfl.data import benchmarks
from dapperfl.data import prepare as module
from dapperfl.data.benchmarks import office_caltech
from dapperfl.data.prepare import Report, prepare
from dapperfl.errors import ConfigError, DataError
from tests.data.official import (
    libsvm_text,
    small,
    write_images,
    write_mnist,
    write_svhn,
    write_usps,
)

CLASSES = office_caltech.LAYOUT.classes


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with all of Digits, as people have it."""
    folder = tmp_path / "official"
    for split, layout in (("train", "imgs_train"), ("test", "imgs_valid")):
        write_mnist(folder / "MNIST" / "raw", split, packed=split == "train")
        write_usps(folder / "USPS", split)
        write_svhn(folder / "SVHN", split)
        write_images(folder / "synthetic_digits" / layout, "0123456789", ending="jpg")
    return folder


def states(report: Report) -> dict[str, str]:
    return {f"{each.domain} {each.split}": each.state for each in report.outcomes}


def test_official_files_become_a_benchmark(source: Path, tmp_path: Path) -> None:
    report = prepare("digits", source, root=tmp_path)
    assert set(states(report).values()) == {"written"}
    assert report.complete
    assert report.advice == ()
    benchmark = benchmarks.load("digits", tmp_path)
    assert [len(domain.train) for domain in benchmark.domains.values()] == [20] * 4
    assert [domain.official_size for domain in benchmark.domains.values()] == [20] * 4


def test_pictures_keep_their_native_size_and_bytes(source: Path, tmp_path: Path) -> None:
    written = write_mnist(source / "MNIST" / "raw", "test")
    prepare("digits", source, root=tmp_path)
    with np.load(tmp_path / "digits" / "mnist_test.npz") as stored:
        np.testing.assert_array_equal(stored["images"], written.images)
        np.testing.assert_array_equal(stored["labels"], written.labels)
        assert stored["labels"].dtype == np.uint8
        assert int(stored["official_size"]) == 20
        assert stored["classes"].tolist() == [*"0123456789"]


def test_office_keeps_the_sorted_order(tmp_path: Path) -> None:
    source = tmp_path / "Office_Caltech_10"
    written = {name: write_images(source / name, CLASSES, 3) for name in ("caltech10", "amazon")}
    for name in ("Webcam", "DSLR"):
        write_images(source / name, CLASSES, 1)
    assert prepare("office_caltech", source, root=tmp_path).complete
    domains = benchmarks.load("office_caltech", tmp_path).domains
    train, test = domains["caltech"].train, domains["caltech"].test
    assert (len(train), len(test)) == (24, 6)
    ours = iter(train.images), iter(test.images)
    for place, picture in enumerate(written["caltech10"]):
        image = next(ours[place % 10 > 7])
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), small(picture))


def test_the_manifest_has_counts_and_sums(source: Path, tmp_path: Path) -> None:
    prepare("digits", source, root=tmp_path)
    files = json.loads((tmp_path / "digits" / "manifest.json").read_text())["files"]
    assert len(files) == 8
    entry = files["usps_train.npz"]
    prepared = (tmp_path / "digits" / "usps_train.npz").read_bytes()
    assert entry["sha256"] == hashlib.sha256(prepared).hexdigest()
    assert (entry["images"], entry["per_class"]) == (20, [2] * 10)
    official = (source / "USPS" / "usps.bz2").read_bytes()
    assert entry["sources"] == [
        {
            "path": "USPS/usps.bz2",
            "files": 1,
            "bytes": len(official),
            "sha256": hashlib.sha256(official).hexdigest(),
        }
    ]
    assert files["syn_train.npz"]["sources"][0]["files"] == 20


def test_one_missing_domain_does_not_stop_the_others(source: Path, tmp_path: Path) -> None:
    for path in (source / "SVHN").iterdir():
        path.rename(path.with_suffix(".zip"))
    report = prepare("digits", source, root=tmp_path)
    assert not report.complete
    assert [name for name, state in states(report).items() if state == "missing"] == [
        "svhn train",
        "svhn test",
    ]
    missing = next(each for each in report.outcomes if each.state == "missing")
    assert missing.remark == f"looked for train_32x32.mat in {source} and below"
    assert report.advice[0].startswith("svhn: get train_32x32.mat")
    assert "is an archive: unpack it first" in report.advice[1]


def test_a_damaged_source_is_named_and_does_not_stop_the_others(
    source: Path, tmp_path: Path
) -> None:
    (source / "USPS" / "usps.bz2").write_bytes(b"BZh9junk")
    report = prepare("digits", source, root=tmp_path)
    failed = [each for each in report.outcomes if each.state == "failed"]
    assert [(each.domain, each.split) for each in failed] == [("usps", "train")]
    assert str(source / "USPS" / "usps.bz2") in failed[0].remark
    assert not (tmp_path / "digits" / "usps_train.npz").exists()
    assert len([each for each in report.outcomes if each.state == "written"]) == 7


def test_what_is_finished_is_not_made_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare("digits", source, root=tmp_path)
    monkeypatch.setattr(module, "write_prepared", lambda *_: pytest.fail("written again"))
    report = prepare("digits", source, root=tmp_path)
    assert set(states(report).values()) == {"kept"}
    assert {each.images for each in report.outcomes} == {20}


@pytest.mark.parametrize("change", ["prepared file", "source", "manifest"])
def test_what_has_changed_is_made_again(source: Path, tmp_path: Path, change: str) -> None:
    prepare("digits", source, root=tmp_path)
    path = tmp_path / "digits" / "usps_train.npz"
    whole = path.read_bytes()
    if change == "prepared file":
        path.write_bytes(whole[:-1000])
    elif change == "source":
        (source / "USPS" / "usps.bz2").write_bytes(libsvm_text(30).encode())
    else:
        manifest = tmp_path / "digits" / "manifest.json"
        stored = json.loads(manifest.read_text())
        del stored["files"]["usps_train.npz"]
        manifest.write_text(json.dumps(stored))
    found = states(prepare("digits", source, root=tmp_path))
    assert [name for name, state in found.items() if state == "written"] == ["usps train"]
    assert (path.read_bytes() == whole) == (change != "source")


def test_an_interrupted_call_is_repeated_and_goes_on(source: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what == "syn train" and done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("digits", source, root=tmp_path, progress=interrupt)
    left = {path.name for path in (tmp_path / "digits").iterdir()}
    assert len(left) == 7
    assert not [name for name in left if "syn" in name or "part" in name]
    found = states(prepare("digits", source, root=tmp_path))
    assert [name for name, state in found.items() if state == "written"] == [
        "syn train",
        "syn test",
    ]
    assert len(benchmarks.load("digits", tmp_path).domains) == 4


def test_a_kill_between_file_and_manifest_costs_only_that_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare("digits", source, root=tmp_path)
    assert prepare("digits", source, root=tmp_path).complete
    assert set(states(prepare("digits", source, root=tmp_path)).values()) == {"kept"}


def test_what_a_killed_writer_left_is_removed_once_it_is_old(source: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "digits" / ".a.1.part", tmp_path / "digits" / ".a.2.part"
    old.parent.mkdir()
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    prepare("digits", source, root=tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_domains_may_come_from_different_folders(source: Path, tmp_path: Path) -> None:
    prepare("digits", source / "MNIST", root=tmp_path)
    (source / "MNIST").rename(tmp_path / "elsewhere")
    report = prepare("digits", source, root=tmp_path)
    assert report.complete
    assert states(report)["mnist train"] == "kept"
    assert "its source is not here" in report.outcomes[0].remark


def test_a_prepared_file_that_is_damaged_and_has_no_source_is_named(
    source: Path, tmp_path: Path
) -> None:
    prepare("digits", source, root=tmp_path)
    path = tmp_path / "digits" / "mnist_train.npz"
    path.write_bytes(path.read_bytes()[:-30])
    (source / "MNIST").rename(tmp_path / "elsewhere")
    report = prepare("digits", source, root=tmp_path)
    assert states(report)["mnist train"] == "failed"
    assert "mnist_train.npz cannot be read" in report.outcomes[0].remark


def test_counts_that_are_not_the_official_ones_are_remarked(source: Path, tmp_path: Path) -> None:
    report = prepare("digits", source, root=tmp_path)
    remarks = {f"{each.domain} {each.split}": each.remark for each in report.outcomes}
    assert "60,000 pictures: is the source complete?" in remarks["mnist train"]
    assert remarks["syn train"] == ""
    write_usps(source / "USPS", "test", 2007)
    remarks = {
        f"{each.domain} {each.split}": each.remark
        for each in prepare("digits", source, root=tmp_path).outcomes
    }
    assert "is it another data set?" in remarks["usps test"]


def test_progress_is_told(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    prepare("digits", source, root=tmp_path, progress=lambda *told: seen.append(told))
    assert {what for what, _, _ in seen} == {
        f"{domain} {split}"
        for domain in ("mnist", "usps", "svhn", "syn")
        for split in ("train", "test")
    }
    assert ("syn train", 20, 20) in seen


def test_a_link_that_leaves_the_folder_is_not_followed_but_mentioned(
    source: Path, tmp_path: Path
) -> None:
    (source / "MNIST").rename(tmp_path / "elsewhere")
    (source / "MNIST").symlink_to(tmp_path / "elsewhere")
    report = prepare("digits", source, root=tmp_path / "root")
    assert states(report)["mnist train"] == "missing"
    assert any("MNIST is a link that leaves" in line for line in report.advice)


def test_an_unknown_benchmark_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='did you mean "digits"'):
        prepare("digit", tmp_path)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        prepare("digits", tmp_path / "nowhere", root=tmp_path)
