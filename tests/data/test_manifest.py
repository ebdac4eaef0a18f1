import hashlib
import json
import logging
from pathlib import Path

import pytest

from dapperfl.data.manifest import Entry, Source, fingerprint, read_manifest, write_manifest

ENTRY = Entry("ab" * 32, 3, (1, 2), (Source("MNIST/raw/x.gz", 1, 10, "cd" * 32),))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_manifest(tmp_path / "digits", {"mnist_train.npz": ENTRY})
    assert read_manifest(tmp_path / "digits") == {"mnist_train.npz": ENTRY}
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["manifest.json"]
    stored = json.loads((tmp_path / "digits" / "manifest.json").read_text())
    assert stored["benchmark"] == "digits"
    assert stored["files"]["mnist_train.npz"]["per_class"] == [1, 2]


def test_without_a_manifest_nothing_is_known(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 2, "files": {}}', '{"format": 1, "files": {"a": {}}}', "null"]
)
def test_a_damaged_manifest_is_named_and_not_believed(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert read_manifest(tmp_path) == {}
    assert "manifest.json is damaged" in caplog.text


def test_few_sources_are_listed_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "raw" / "usps.bz2"
    path.parent.mkdir()
    path.write_bytes(b"hello")
    (source,) = fingerprint([path], tmp_path)
    assert source == Source("raw/usps.bz2", 1, 5, hashlib.sha256(b"hello").hexdigest())


def test_many_sources_are_one_sum_that_any_change_changes(tmp_path: Path) -> None:
    paths = [tmp_path / "syn" / f"{number}.jpg" for number in range(6)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(path.name.encode())
    (before,) = fingerprint(paths, tmp_path)
    assert (before.path, before.files, before.bytes) == ("syn", 6, 30)
    assert fingerprint(paths, tmp_path) == (before,)
    paths[3].write_bytes(b"other")
    (changed,) = fingerprint(paths, tmp_path)
    assert changed.sha256 != before.sha256
    assert fingerprint(paths[::-1], tmp_path)[0].sha256 != changed.sha256
