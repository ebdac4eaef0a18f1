"""A contact sheet: some pictures of every domain and class on one page, to be looked at."""

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.data.checking import what_is_wrong
from dapperfl.data.extras import demo_packages
from dapperfl.errors import DataError
from dapperfl.naming import one_line

if TYPE_CHECKING:
    from PIL import Image, ImageFont

TILE = 64  # pixels of a picture on the page: twice the usual 32, so that pixels stay pixels
GAP = 2
MARGIN = 44  # left of each block, for the names of the splits
TITLE = 46  # above each block, for the names of domain and classes
COLUMNS = 2  # blocks side by side
CLASSES = 24  # shown at most: a wider page is no page


def draw(benchmark: Benchmark, path: Path, *, per_class: int = 3) -> None:
    """Write a page with one block per domain: a column per class, training above test pictures.

    Args:
        benchmark: what to show.
        path: of the PNG file; its folder is made if need be.
        per_class: how many training pictures of each class; half as many test pictures follow.

    Raises:
        DataError: what the benchmark holds are no pictures.
    """
    for name, domain in benchmark.domains.items():
        for split, examples in (("training", domain.train), ("test", domain.test)):
            if wrong := what_is_wrong(examples, len(benchmark.classes)):
                raise DataError(f"{split} pictures of {name}: {wrong}")
    with demo_packages("a contact sheet"):
        from PIL import Image

    blocks = [_block(benchmark, name, per_class) for name in benchmark.domains]
    width, height = max(block.width for block in blocks), blocks[0].height
    rows = -(-len(blocks) // COLUMNS)
    page = Image.new("RGB", (min(COLUMNS, len(blocks)) * width, rows * height), "white")
    for index, block in enumerate(blocks):
        page.paste(block, (index % COLUMNS * width, index // COLUMNS * height))
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path, format="PNG", optimize=True)


def _block(benchmark: Benchmark, name: str, per_class: int) -> "Image.Image":
    """Draw one domain with its titles."""
    from PIL import Image, ImageDraw

    domain, classes = benchmark.domains[name], benchmark.classes[:CLASSES]
    step = TILE + GAP
    rows = _rows(domain, per_class)
    large, small = _font(14), _font(11)
    title = f"{one_line(name)}: {len(domain.train)} training and {len(domain.test)} test pictures"
    if len(classes) < len(benchmark.classes):
        title += f", {len(classes)} of {len(benchmark.classes)} classes"
    wide = max(step * len(classes), ceil(large.getlength(title)))
    block = Image.new("RGB", (MARGIN + wide + 12, TITLE + step * len(rows) + 18), "white")
    pen = ImageDraw.Draw(block)
    pen.text((MARGIN, 6), title, fill="black", font=large)
    for column, label in enumerate(classes):
        middle = MARGIN + column * step + TILE // 2
        pen.text((middle, TITLE - 4), _cut(label, small), fill="#555555", font=small, anchor="ms")
    for row, (split, examples, place) in enumerate(rows):
        top = TITLE + row * step + (6 if split == "test" else 0)
        if place == 0:
            pen.text((4, top + TILE // 2), split, fill="#555555", font=small, anchor="lm")
        for column in range(len(classes)):
            if (tile := _tile(examples, column, place)) is not None:
                block.paste(tile, (MARGIN + column * step, top))
    return block


def _font(size: int) -> "ImageFont.FreeTypeFont":
    """Return a font with the letters of many languages; Pillow's own lacks even those with dots."""
    from PIL import ImageFont

    with demo_packages("a contact sheet"):
        import matplotlib

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", size)


def _cut(name: str, font: "ImageFont.FreeTypeFont") -> str:
    """Return as much of a name as its column is wide."""
    shown = one_line(name)
    if font.getlength(shown) <= TILE:
        return shown
    while font.getlength(f"{shown}…") > TILE:
        shown = shown[:-1]
    return f"{shown}…"


def _rows(domain: Domain, per_class: int) -> list[tuple[str, Examples, int]]:
    """List the rows of a block: split, its examples, and which example of each class."""
    train = [("train", domain.train, place) for place in range(per_class)]
    return train + [("test", domain.test, place) for place in range(-(-per_class // 2))]


def _tile(examples: Examples, label: int, place: int) -> "Image.Image | None":
    """Return the picture of a class at this place, enlarged; None if the class has fewer.

    Of more than three channels the first three are its colours, of two the first one is its grey.
    """
    from PIL import Image

    found = torch.nonzero(examples.labels == label).flatten()
    if place >= len(found):
        return None
    channels = examples.images[found[place]]
    picture = channels[:3] if len(channels) >= 3 else channels[:1].expand(3, -1, -1)
    image = Image.fromarray(picture.permute(1, 2, 0).contiguous().cpu().numpy())
    return image.resize((TILE, TILE), Image.Resampling.NEAREST)
