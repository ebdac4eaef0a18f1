"""A contact sheet: some pictures of every domain and class on one page, to be looked at."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dapperfl.data.benchmark import Benchmark, Domain, Examples
from dapperfl.data.extras import demo_packages

if TYPE_CHECKING:
    from PIL import Image

TILE = 64  # pixels of a picture on the page: twice the usual 32, so that pixels stay pixels
GAP = 2
MARGIN = 44  # left of each block, for the names of the splits
TITLE = 46  # above each block, for the names of domain and classes
COLUMNS = 2  # blocks side by side


def draw(benchmark: Benchmark, path: Path, *, per_class: int = 3) -> None:
    """Write a page with one block per domain: a column per class, training above test pictures.

    Args:
        benchmark: what to show.
        path: of the PNG file; its folder is made if need be.
        per_class: how many training pictures of each class; half as many test pictures follow.
    """
    with demo_packages("a contact sheet"):
        from PIL import Image

    blocks = [_block(benchmark, name, per_class) for name in benchmark.domains]
    width, height = blocks[0].size
    rows = -(-len(blocks) // COLUMNS)
    page = Image.new("RGB", (min(COLUMNS, len(blocks)) * width, rows * height), "white")
    for index, block in enumerate(blocks):
        page.paste(block, (index % COLUMNS * width, index // COLUMNS * height))
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path, format="PNG", optimize=True)


def _block(benchmark: Benchmark, name: str, per_class: int) -> "Image.Image":
    """Draw one domain with its titles."""
    from PIL import Image, ImageDraw, ImageFont

    domain = benchmark.domains[name]
    step = TILE + GAP
    rows = _rows(domain, per_class)
    size = (MARGIN + step * len(benchmark.classes) + 12, TITLE + step * len(rows) + 18)
    block = Image.new("RGB", size, "white")
    pen, small = ImageDraw.Draw(block), ImageFont.load_default(size=12)
    title = f"{name}: {len(domain.train)} training and {len(domain.test)} test pictures"
    pen.text((MARGIN, 6), title, fill="black", font=ImageFont.load_default(size=15))
    for column, label in enumerate(benchmark.classes):
        middle = MARGIN + column * step + TILE // 2
        pen.text((middle, TITLE - 4), label, fill="#555555", font=small, anchor="ms")
    for row, (split, examples, place) in enumerate(rows):
        top = TITLE + row * step + (6 if split == "test" else 0)
        if place == 0:
            pen.text((4, top + TILE // 2), split, fill="#555555", font=small, anchor="lm")
        for column in range(len(benchmark.classes)):
            if (tile := _tile(examples, column, place)) is not None:
                block.paste(tile, (MARGIN + column * step, top))
    return block


def _rows(domain: Domain, per_class: int) -> list[tuple[str, Examples, int]]:
    """List the rows of a block: split, its examples, and which example of each class."""
    train = [("train", domain.train, place) for place in range(per_class)]
    return train + [("test", domain.test, place) for place in range(-(-per_class // 2))]


def _tile(examples: Examples, label: int, place: int) -> "Image.Image | None":
    """Return the picture of a class at this place, enlarged; None if the class has fewer."""
    from PIL import Image

    found = torch.nonzero(examples.labels == label).flatten()
    if place >= len(found):
        return None
    picture = examples.images[found[place]].expand(3, -1, -1).permute(1, 2, 0)
    image = Image.fromarray(picture.contiguous().cpu().numpy())
    return image.resize((TILE, TILE), Image.Resampling.NEAREST)
