import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapperfl.data.sources import unpacking, usps
from dapperfl.data.sources.survey import survey
from dapperfl.errors import DataError
from tests.data.official import libsvm_text, read, tried, usps_rows, write_usps, zip_text

LINE = "3 1:0.5 256:-1\n"


def expected(num: int) -> np.ndarray:
    """Map [-1, 1] to bytes picture by picture, by the definition."""
    values = usps_rows(num)[0].astype(np.float32)
    return np.floor((values + 1) / 2 * 255).reshape(-1, 16, 16).astype(np.uint8)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_libsvm_file_gives_exact_pixels_and_digits(tmp_path: Path, split: str) -> None:
    write_usps(tmp_path / "USPS", split)
    found = read(usps.find, tmp_path, split)
    np.testing.assert_array_equal(found.images, expected(20))
    np.testing.assert_array_equal(found.labels, np.arange(20) % 10)
    assert (found.images[0, 0, 0], found.images[0, 0, 1], found.images[0, 0, 2]) == (0, 255, 127)


@pytest.mark.parametrize("name", ["zip.train.gz", "zip.train", "usps"])
def test_the_other_forms_give_the_same_pictures(tmp_path: Path, name: str) -> None:
    text = (libsvm_text if name == "usps" else zip_text)(12).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = read(usps.find, tmp_path, "train")
    np.testing.assert_array_equal(found.images, expected(12))
    np.testing.assert_array_equal(found.labels, np.arange(12) % 10)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert usps.find(survey(tmp_path), "train") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (LINE + "0 1:0.5\n", "line 2: the digit -1"),
        ("11 1:0.5\n", "line 1: the digit 10"),
        ("1.5 1:0.5\n", "no whole number"),
        ("3 257:0.5\n", "pixel 257"),
        ("3 2:0.5 2:0.5\n", "pixel 2 after pixel 2"),
        ("3 1:1.5\n", "outside"),
        ("3 1:nan\n", "outside"),
        ("3 1:\n", "line 1"),
        ("three 1:0.5\n", "line 1"),
        ("3 1:0.5 é\n", "not a text file"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(text.encode()))
    with pytest.raises(DataError, match=said) as caught:
        read(usps.find, tmp_path, "train")
    assert "usps.bz2" in str(caught.value)


def test_a_short_row_of_the_other_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "zip.test").write_text(zip_text(2) + "5.0 0.1 0.2\n")
    with pytest.raises(DataError, match="line 3: 2 pixels instead of 256"):
        read(usps.find, tmp_path, "test")


@pytest.mark.parametrize("cut", [10, 400])
def test_a_truncated_archive_is_named(tmp_path: Path, cut: int) -> None:
    write_usps(tmp_path, "train")
    path = tmp_path / "usps.bz2"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"usps\.bz2 cannot be read"):
        read(usps.find, tmp_path, "train")


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(b"1 " * 4_000_000))
    monkeypatch.setattr(unpacking, "TEXT_LIMIT", 5_000_000)
    with pytest.raises(DataError, match="unpacks to more than"):
        read(usps.find, tmp_path, "train")
    path.write_bytes(bz2.compress(b"1\n" * 11))
    monkeypatch.setattr(usps, "LIMIT", 10)
    with pytest.raises(DataError, match="more than 10 pictures"):
        read(usps.find, tmp_path, "train")


@given(
    text=st.one_of(
        st.text(alphabet="0123456789:.-+einfa \n", max_size=60),
        st.lists(st.sampled_from(["3", "1:", ":", "1e999", "-0", "1:0.5", "2:1", "\n"])).map(
            " ".join
        ),
    ),
    name=st.sampled_from(["usps", "zip.train"]),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused_politely(tmp_path: Path, text: str, name: str) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    (tmp_path / name).write_text(text)
    found, said = tried(lambda: read(usps.find, tmp_path, "train"))
    rows = len([line for line in text.splitlines() if line.strip()])
    assert name in said if found is None else len(found.images) == rows
