import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dapperfl.data.sources import image_files as module
from dapperfl.data.sources.image_files import image_files, read_image, read_images
from dapperfl.errors import DataError
from tests.data.official import pixels, small, tried


def png_of(width: int, height: int) -> bytes:
    """Return a small valid PNG that says it is large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_a_picture_is_scaled_as_pillow_scales_it(tmp_path: Path) -> None:
    picture = pixels(50, 70, 3)
    Image.fromarray(picture).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", 32), small(picture))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK", "LA", "I;16"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    if mode == "I;16":
        Image.fromarray(np.full((40, 40), 200, dtype=np.uint16)).save(path)
    else:
        Image.fromarray(np.full((40, 40, 3), 200, dtype=np.uint8)).convert(mode).save(path)
    found = read_image(path, 32)
    assert found.shape == (32, 32, 3)
    assert abs(int(found[3, 4, 1]) - (255 if mode == "1" else 200)) <= 60


def test_a_palette_with_transparency_is_read(tmp_path: Path) -> None:
    image = Image.fromarray(pixels(40, 40, 3)).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    assert read_image(tmp_path / "a.png", 32).shape == (32, 32, 3)


@pytest.mark.parametrize(("width", "height"), [(30_000, 30_000), (9_000, 5_000)])
def test_an_image_bomb_is_refused(tmp_path: Path, width: int, height: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of(width, height))
    with pytest.raises(DataError, match=r"bomb\.png is too large"):
        read_image(path, 32)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not an image"),
        (b"<html>not found</html>", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (png_of(40, 40)[:44], "damaged image"),
    ],
)
def test_what_is_no_image_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    with pytest.raises(DataError, match=said) as caught:
        read_image(path, 32)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("ending", ["jpg", "png", "bmp", "webp"])
def test_a_truncated_image_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    Image.fromarray(pixels(40, 40, 3)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"a\.{ending} is"):
        read_image(path, 32)


@pytest.mark.filterwarnings("default")  # Pillow may well warn of what it finds in such a file
@given(position=st.integers(0, 10_000), junk=st.binary(min_size=1, max_size=8))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "bmp"])
def test_changed_bytes_are_survived(
    tmp_path: Path, ending: str, position: int, junk: bytes
) -> None:
    path = tmp_path / f"a.{ending}"
    Image.fromarray(pixels(24, 24, 3)).save(path)
    data = bytearray(path.read_bytes())
    at = position % len(data)
    data[at : at + len(junk)] = junk
    path.write_bytes(data)
    image, said = tried(lambda: read_image(path, 8))
    assert str(path) in said if image is None else image.shape == (8, 8, 3)


def test_only_image_files_that_are_not_hidden_count() -> None:
    names = ["b.JPG", "a.png", "._a.png", "Thumbs.db", "notes.txt"]
    assert [path.name for path in image_files(map(Path, names))] == ["b.JPG", "a.png"]


def test_many_are_read_in_order_with_progress(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.png" for name in "ba"]
    for path, shade in zip(paths, (10, 20), strict=True):
        Image.new("RGB", (40, 40), (shade, 0, 0)).save(path)
    seen: list[tuple[int, int]] = []
    found = read_images(paths, 4, lambda done, total: seen.append((done, total)))
    assert found[:, 0, 0, 0].tolist() == [10, 20]
    assert seen == [(1, 2), (2, 2)]


def test_the_limit_of_pixels_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(module, "MAX_PIXELS", 1599)
    with pytest.raises(DataError, match="40 × 40 pixels"):
        read_image(tmp_path / "a.png", 32)


def test_without_pillow_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="pip install"):
        read_image(tmp_path / "a.png", 32)
