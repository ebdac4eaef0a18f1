"""Image files from strangers, as small RGB pictures: each is checked before it is decoded."""

import struct
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dapperfl.data.extras import demo_packages
from dapperfl.data.sources.found import Tick
from dapperfl.errors import DataError

MAX_PIXELS = 40_000_000  # the largest official picture has 4 million
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
ENDINGS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif"),
    *(".ppm", ".pgm", ".pbm", ".tif", ".tiff", ".webp"),
}
OTHERS = {".heic", ".heif", ".avif", ".jxl", ".jp2", ".tga", ".dng", ".svg"}  # not read here
# What Pillow's decoders are known to raise for a file that is not whole.
_DAMAGE = (OSError, ValueError, SyntaxError, LookupError, TypeError, EOFError, ArithmeticError)


def image_files(paths: Iterable[Path]) -> list[Path]:
    """Keep the image files, in their order; hidden files are none."""
    return [path for path in paths if path.suffix.lower() in ENDINGS and path.name[0] != "."]


def read_image(path: Path, side: int) -> NDArray[np.uint8]:
    """Decode one file, in RGB, and scale it to a square, as an image-folder pipeline does.

    Raises:
        DataError: it is damaged, of another format, or unreasonably large.
    """
    with demo_packages("reading image files"):
        from PIL import Image, UnidentifiedImageError
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError(f"{image.width} × {image.height} pixels")
                # A palette with transparency has to take this way round.
                whole = image.convert("RGBA") if image.mode == "P" else image
                small = whole.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
                return np.asarray(small)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{path} is too large to be decoded safely ({error})") from None
    except UnidentifiedImageError:
        raise DataError(f"{path} is not an image of a known format") from None
    except (*_DAMAGE, struct.error) as error:
        raise DataError(f"{path} is a damaged image ({error})") from None


def read_images(paths: Sequence[Path], side: int, tick: Tick) -> NDArray[np.uint8]:
    """Decode many files: (n, side, side, 3)."""
    images = np.empty((len(paths), side, side, 3), dtype=np.uint8)
    for place, path in enumerate(paths):
        images[place] = read_image(path, side)
        tick(place + 1, len(paths))
    return images
