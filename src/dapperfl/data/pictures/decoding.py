"""Picture files of any kind as small squares of RGB bytes; nothing in them is trusted."""

import logging
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dapperfl.data.extras import demo_packages
from dapperfl.data.sources.image_files import FORMATS, MAX_PIXELS
from dapperfl.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger(__name__)

SAY_EVERY = 5.0  # seconds between two lines about the progress
THREADS = 8  # Pillow decodes outside the interpreter's lock


@dataclass(frozen=True)
class Decoded:
    """Many pictures; one that cannot be read is black and has a reason."""

    images: NDArray[np.uint8]  # (n, side, side, 3)
    reasons: tuple[str, ...]  # "" where all is well


def decode_all(paths: Sequence[Path], side: int) -> Decoded:
    """Decode many files, and say in the log how far it is if that takes long."""
    with demo_packages("reading pictures"):
        from PIL import Image
    images = np.zeros((len(paths), side, side, 3), dtype=np.uint8)
    reasons = []
    said = time.monotonic()
    with warnings.catch_warnings(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore", UserWarning)  # oddities of files, not ours to mend
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `decode` is stricter
        for place, result in enumerate(pool.map(partial(_try, side=side), paths)):
            if isinstance(result, str):
                reasons.append(result)
            else:
                images[place] = result
                reasons.append("")
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                log.info("%d of %d pictures read", place + 1, len(paths))
    return Decoded(images, tuple(reasons))


def _try(path: Path, side: int) -> NDArray[np.uint8] | str:
    try:
        return decode(path, side)
    except Exception as error:
        # The border to a stranger's bytes: Pillow's decoders raise whatever they stumble over.
        return " ".join(f"{error}".replace(str(path), "it").split()) or type(error).__name__


def decode(path: Path, side: int) -> NDArray[np.uint8]:
    """Decode one file (of an animation its first frame), upright, and squash it to a square.

    Squashing (not cropping) and bilinear scaling are what the paper does with its benchmarks.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    # By name, Pillow would map a plain TIFF into memory and scramble one that lies on its side.
    with path.open("rb") as content:
        try:
            file = Image.open(content, formats=FORMATS)
        except UnidentifiedImageError:
            raise DataError("cannot identify image file") from None
        if file.width * file.height > MAX_PIXELS:
            raise DataError(f"{file.width} × {file.height} pixels are too many")
        upright = ImageOps.exif_transpose(file)
        return np.asarray(_rgb(upright).resize((side, side), Image.Resampling.BILINEAR))


def _rgb(image: "Image.Image") -> "Image.Image":
    """Make three channels of bytes of whatever an image has: grey, palette, alpha, 16 bits."""
    from PIL import Image

    if image.mode == "F":
        raise DataError("its pixels are floating-point numbers, whose range nobody knows")
    if image.mode.startswith("I"):
        return Image.fromarray(_bytes(np.asarray(image).astype(np.int64))).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _bytes(levels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Scale 16 bits to 8, where Pillow would cut them off at 255.

    Files do not say how many of their bits are in use: what would come out black is refused.
    """
    low, high = int(levels.min()), int(levels.max())
    if low < 0 or high > 65535:
        raise DataError(f"its pixels are from {low} to {high}, and those of 16 bits up to 65535")
    if 0 < high < 257:
        raise DataError(
            f"its pixels are at most {high} of 65535, so it is black; save it in 8 bits"
        )
    return (levels // 257).astype(np.uint8)
