"""Small trees of real picture files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def picture(number: int, side: int = 8) -> Image.Image:
    """Make a picture of one colour that tells its number."""
    return Image.new("RGB", (side, side), (number % 256, 100, 200))


def plant(root: Path, counts: Mapping[str, int]) -> Path:
    """Write so many pictures into each folder, given by its path below the root."""
    for index, (folder, count) in enumerate(counts.items()):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(40 * index + number).save(root / folder / f"{number:03}.png")
    return root


def noise(height: int, width: int, *channels: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, *channels), np.uint8)
