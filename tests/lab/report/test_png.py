"""The pictures we write are what another reader sees."""

from base64 import b64decode
from io import BytesIO

from PIL import Image

from dapperfl.lab.report.png import data_uri, png

ROWS = [
    [(255, 0, 0, 255), (0, 255, 0, 128), (0, 0, 255, 0)],
    [(1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)],
]


def test_every_pixel_comes_back():
    image = Image.open(BytesIO(png(ROWS)))
    assert (image.size, image.mode) == ((3, 2), "RGBA")
    pixels = [image.getpixel((x, y)) for y in range(2) for x in range(3)]
    assert pixels == [pixel for row in ROWS for pixel in row]


def test_an_address_holds_the_picture():
    kind, _, data = data_uri(b"abc").partition(",")
    assert kind == "data:image/png;base64"
    assert b64decode(data) == b"abc"
