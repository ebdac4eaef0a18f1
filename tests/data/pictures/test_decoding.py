"""Every kind of picture file becomes RGB bytes, or says why not."""

import logging
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dapperfl.data.pictures import decoding
from dapperfl.data.pictures.decoding import decode, decode_all
from tests.data.pictures.trees import noise


def test_a_picture_is_squashed_as_the_paper_does(tmp_path: Path) -> None:
    image = Image.fromarray(noise(40, 60, 3))
    image.save(tmp_path / "a.png")
    expected = np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(decode(tmp_path / "a.png", 8), expected)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "LA", "RGBA", "PA"])
def test_any_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    endings = {"CMYK": "tif", "PA": "tif"}
    path = tmp_path / f"a.{endings.get(mode, 'png')}"
    Image.new("RGB", (8, 8), (255, 255, 255)).convert("RGBA").convert(
        "L" if mode == "1" else "RGBA"
    ).convert(mode if mode != "PA" else "P").save(path)
    assert np.array_equal(decode(path, 4), np.full((4, 4, 3), 255))


def test_grey_is_three_equal_channels(tmp_path: Path) -> None:
    Image.fromarray(noise(8, 8)).save(tmp_path / "a.png")
    assert np.array_equal(decode(tmp_path / "a.png", 8), np.repeat(noise(8, 8)[..., None], 3, 2))


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:4] = (200, 0, 0, 255)
    pixels[4:] = (200, 0, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    shown = decode(tmp_path / "a.png", 8)
    assert (shown[0, 0] == (200, 0, 0)).all()
    assert (shown[7, 7] == 255).all()


def test_a_transparent_palette_is_laid_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 9, 99, 199])
    image.save(tmp_path / "solid.png")
    image.save(tmp_path / "clear.png", transparency=1)
    assert (decode(tmp_path / "solid.png", 4) == (9, 99, 199)).all()
    assert (decode(tmp_path / "clear.png", 4) == 255).all()


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_not_cut_off(tmp_path: Path, ending: str) -> None:
    levels = np.full((8, 8), 0x8080, np.uint16)
    levels[:4] = 0xFFFF
    Image.fromarray(levels).save(tmp_path / f"a.{ending}")
    shown = decode(tmp_path / f"a.{ending}", 8)
    assert (shown[0, 0] == 255).all()
    assert (shown[7, 7] == 128).all()


@pytest.mark.parametrize(
    ("low", "high", "kind", "reason"),
    [
        (0, 255, np.uint16, "at most 255 of 65535"),
        (0, 255, np.int32, "at most 255 of 65535"),
        (-5, 3000, np.int32, "from -5 to 3000"),
        (0, 65536, np.int32, "from 0 to 65536"),
        (0, 0, np.uint16, ""),  # black it is
        (0, 257, np.int32, ""),
        (65535, 65535, np.int32, ""),
    ],
)
def test_deep_pixels_that_would_come_out_black_or_white_are_refused(
    tmp_path: Path, low: int, high: int, kind: type, reason: str
) -> None:
    levels: np.ndarray = np.full((8, 8), low, kind)
    levels[:4] = high
    Image.fromarray(levels).save(tmp_path / "a.tif")
    (said,) = decode_all([tmp_path / "a.tif"], 4).reasons
    assert reason in said
    assert bool(reason) == bool(said)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255  # bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise: left becomes top
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    shown = decode(tmp_path / "a.png", 8)
    assert (shown[0] == 255).all()
    assert (shown[7] == 0).all()


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGB", "RGBA", "I;16"])
def test_a_plain_tiff_that_lies_on_its_side_is_turned(tmp_path: Path, mode: str) -> None:
    pixels = np.zeros((8, 16), np.uint8)
    pixels[:, :8] = 255  # bright on the left
    image = Image.fromarray(pixels)
    deep = Image.fromarray(pixels.astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6  # left becomes top
    (deep if mode == "I;16" else image.convert("RGB").convert(mode)).save(
        tmp_path / "a.tif", exif=exif
    )
    shown = decode(tmp_path / "a.tif", 8)
    assert (shown[0] == 255).all()
    assert (shown[7] == 0).all()


def test_of_an_animation_the_first_frame_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (decode(tmp_path / "a.gif", 4)[0, 0] == (255, 0, 0)).all()


def png_header(width: int, height: int) -> bytes:
    """Write a PNG that claims any size and holds next to nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    data = b"IDAT" + zlib.compress(b"\0" * 64)
    end = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return b"\x89PNG\r\n\x1a\n" + chunk + end


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.png", b"", "cannot identify"),
        ("text.jpg", b"not a picture at all", "cannot identify"),
        ("script.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify"),
        ("bomb.png", png_header(9000, 9000), "9000 × 9000 pixels are too many"),
        ("huge.png", png_header(2**30, 2**30), "decompression bomb"),
        ("cut.png", png_header(10, 10), "truncated|broken|unrecognized|not enough"),
    ],
)
def test_what_cannot_be_read_has_a_reason_and_does_no_harm(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    Image.new("RGB", (8, 8), "white").save(tmp_path / "good.png")
    (tmp_path / name).write_bytes(content)
    read = decode_all([tmp_path / name, tmp_path / "good.png", tmp_path / "absent.png"], 4)
    assert read.images.shape == (3, 4, 4, 3)
    assert (read.images[0] == 0).all()
    assert (read.images[1] == 255).all()
    assert read.reasons[1] == ""
    assert "No such file" in read.reasons[2]
    assert re.search(reason, read.reasons[0])
    assert "\n" not in read.reasons[0]


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    Image.new("F", (8, 8), 0.5).save(tmp_path / "a.tif")
    assert "floating-point" in decode_all([tmp_path / "a.tif"], 4).reasons[0]


def test_a_long_reading_says_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "SAY_EVERY", -1.0)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with caplog.at_level(logging.INFO):
        decode_all([tmp_path / "a.png"] * 3, 4)
    assert "2 of 3 pictures read" in caplog.text
