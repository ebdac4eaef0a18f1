import logging
import os
from pathlib import Path

import numpy as np
import pytest

from dapperfl.data.pictures import cache
from dapperfl.data.pictures.cache import read_all
from dapperfl.data.pictures.decoding import Decoded, decode_all
from tests.data.pictures.trees import picture, plant


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path / "home"))
    return tmp_path / "home" / "folder"


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many pictures were decoded, time by time."""
    seen: list[int] = []

    def counted(paths: list[Path], side: int) -> Decoded:
        seen.append(len(paths))
        return decode_all(paths, side)

    monkeypatch.setattr(cache, "decode_all", counted)
    return seen


def tree(tmp_path: Path) -> tuple[Path, list[Path]]:
    root = plant(tmp_path / "root", {"photo/cat": 3})
    (root / "photo" / "cat" / "bad.png").write_text("bad")
    return root, sorted((root / "photo" / "cat").iterdir())


def test_a_second_reading_decodes_nothing_and_is_equal(
    tmp_path: Path, home: Path, decodings: list[int]
) -> None:
    root, paths = tree(tmp_path)
    first, second = read_all(root, paths, 4), read_all(root, paths, 4)
    assert decodings == [4]
    assert np.array_equal(first.images, second.images)
    assert first.reasons == second.reasons
    assert [bool(reason) for reason in second.reasons] == [False, False, False, True]
    assert len(list(home.iterdir())) == 1


def test_another_size_has_its_own_cache(tmp_path: Path, home: Path, decodings: list[int]) -> None:
    root, paths = tree(tmp_path)
    for side in (4, 5, 4, 5):
        assert read_all(root, paths, side).images.shape == (4, side, side, 3)
    assert decodings == [4, 4]


def test_a_changed_added_or_removed_file_is_noticed(
    tmp_path: Path, home: Path, decodings: list[int]
) -> None:
    root, paths = tree(tmp_path)
    read_all(root, paths, 4)
    picture(200).save(paths[0])
    os.utime(paths[0], ns=(1, 1))
    assert read_all(root, paths, 4).images[0, 0, 0, 0] == 200
    read_all(root, paths[:-1], 4)
    paths[0].rename(paths[0].with_name("other.png"))
    read_all(root, [paths[0].with_name("other.png"), *paths[1:-1]], 4)
    assert decodings == [4, 4, 3, 3]
    assert len(list(home.iterdir())) == 1


def test_a_damaged_cache_is_made_again(
    tmp_path: Path, home: Path, decodings: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    root, paths = tree(tmp_path)
    read_all(root, paths, 4)
    (file,) = home.iterdir()
    whole = file.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2]):
        file.write_bytes(content)
        assert len(read_all(root, paths, 4).reasons) == 4
    np.savez(file, allow_pickle=True, marks=np.array(None, dtype=object))
    assert len(read_all(root, paths, 4).reasons) == 4
    assert decodings == [4] * 5
    assert file.read_bytes()[:100] == whole[:100]
    assert caplog.text.count("decoded again") == 4


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DAPPERFL_DATA", str(tmp_path / "file"))
    root, paths = tree(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert read_all(root, paths, 4).images.shape == (4, 4, 4, 3)
    assert "decoded anew each time" in caplog.text
