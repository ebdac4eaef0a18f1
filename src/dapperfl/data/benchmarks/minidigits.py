"""minidigits: ten digits in four domains, made on the spot; no download.

Sources: scikit-learn's 1,797 handwritten digits (Alpaydin and Kaynak, UCI, CC BY 4.0) and two
sample photos (CC BY 2.0), and the DejaVu, STIX and Computer Modern fonts that come with
matplotlib. No source sample (digit, stripe of a photo, font file) serves both training and test,
in whichever domain. `Drawing.sources` says which sample stands behind each picture.
"""

import hashlib
import inspect
import itertools
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dapperfl.core.rng import generator
from dapperfl.data import drawing
from dapperfl.data.benchmark import Benchmark, Domain
from dapperfl.data.drawing import SIDE, Pose, blur, paint, place, to_bytes, uniform
from dapperfl.data.extras import demo_packages
from dapperfl.data.prepared import Arrays, data_root, read_prepared, to_examples, write_prepared
from dapperfl.errors import DataError

log = logging.getLogger(__name__)

PER_CLASS: Mapping[str, int] = {"train": 100, "test": 40}

# Upright and slanted faces of one weight are on the same side: one is nearly the other, sheared.
FONTS: Mapping[str, tuple[str, ...]] = {
    "train": (
        "DejaVuSans.ttf",
        "DejaVuSans-Oblique.ttf",
        "DejaVuSans-Bold.ttf",
        "DejaVuSans-BoldOblique.ttf",
        "DejaVuSansMono-Bold.ttf",
        "DejaVuSansMono-BoldOblique.ttf",
        "DejaVuSerif.ttf",
        "DejaVuSerif-Italic.ttf",
        "STIXGeneral.ttf",
        "STIXGeneralItalic.ttf",
        "cmr10.ttf",
        "cmti10.ttf",
        "cmtt10.ttf",
    ),
    "test": (
        "DejaVuSansMono.ttf",
        "DejaVuSansMono-Oblique.ttf",
        "DejaVuSerif-Bold.ttf",
        "DejaVuSerif-BoldItalic.ttf",
        "STIXGeneralBol.ttf",
        "STIXGeneralBolIta.ttf",
        "cmb10.ttf",
        "cmss10.ttf",
    ),
}
PHOTOS = ("china.jpg", "flower.jpg")
PATCH = 48  # pixels of a photo behind one digit
STRIPE = 64  # the photos' columns go to training and test in stripes, so that both see all motifs
STRIPES: Mapping[str, tuple[int, ...]] = {"train": (0, 1, 3, 4, 6, 7, 9), "test": (2, 5, 8)}
TEST_DIGITS = 50  # handwritten digits of each class that only tests may use


@dataclass(frozen=True)
class Drawing:
    """The pictures of one split, and the source samples they were made from."""

    pictures: Tensor  # (n, SIDE, SIDE, 3), uint8
    sources: Tensor  # (n, k), int64; what the k columns are is said by the domain's function


def load(root: Path | None) -> Benchmark:
    """Return the benchmark, drawn at the first call and read from its cache afterwards."""
    folder = data_root(root) / "minidigits"
    splits, drawn = {}, {}
    for name, split in itertools.product(DOMAINS, PER_CLASS):
        path = folder / f"{name}_{split}.npz"
        arrays = _cached(path, split)
        if arrays is None:
            arrays = drawn[path] = draw(name, split)
        splits[name, split] = arrays
    _keep(drawn)
    domains = {
        name: Domain(
            train=to_examples(splits[name, "train"]),
            test=to_examples(splits[name, "test"]),
            official_size=int(splits[name, "train"]["official_size"]),
        )
        for name in DOMAINS
    }
    return Benchmark(
        name="minidigits",
        domains=domains,
        classes=tuple("0123456789"),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        fraction=0.25,
        flip=False,
    )


def draw(domain: str, split: str) -> Arrays:
    """Draw one split of one domain in the prepared format, with its sources and its version."""
    labels = labels_of(split)
    drawn = DOMAINS[domain](split, labels, generator(0, "minidigits", domain, split))
    return {
        "images": drawn.pictures.numpy(),
        "labels": labels.to(torch.uint8).numpy(),
        "official_size": np.array(len(labels)),
        "sources": drawn.sources.numpy(),
        "version": np.array(version()),
    }


def labels_of(split: str) -> Tensor:
    """Return the labels of a split: 0 to 9 again and again, so that any part is balanced."""
    return torch.arange(10 * PER_CLASS[split]) % 10


def version() -> str:
    """Name the drawing code: a cache made by other code is not used."""
    code = inspect.getsource(sys.modules[__name__]) + inspect.getsource(drawing)
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def handwriting(split: str, labels: Tensor, rng: torch.Generator) -> Drawing:
    """Draw handwritten digits, dark on white. Sources: (digit,)."""
    digits, classes = _sample_digits()
    chosen = _choose_digits(split, labels, classes, rng)
    ink = _enlarge(digits[chosen])
    return Drawing(to_bytes(1 - 0.95 * ink), chosen.unsqueeze(1))


def photo(split: str, labels: Tensor, rng: torch.Generator) -> Drawing:
    """Blend handwritten digits over photos. Sources: (digit, photo, top, left) of each picture."""
    digits, classes = _sample_digits()
    chosen = _choose_digits(split, labels, classes, rng)
    ink = _enlarge(digits[chosen])
    patches, corners = _photo_patches(split, len(labels), rng)
    grey = patches.mean(dim=1, keepdim=True)
    middle = grey.mean((2, 3), keepdim=True)
    # A quieter photo, pushed away from its own brightness where there is ink: always readable,
    # and the photo still shows through the stroke.
    ground = middle + 0.65 * (patches - middle)
    under = (grey * ink).sum((1, 2, 3), keepdim=True) / ink.sum((1, 2, 3), keepdim=True)
    push = torch.where(under < 0.5, 1.0, -1.0) * uniform(rng, 0.5, 0.7, len(labels), 1, 1, 1)
    tint = uniform(rng, -0.12, 0.12, len(labels), 3, 1, 1)
    return Drawing(
        to_bytes(paint(ground, (ground + push + tint).clamp(0, 1), ink)),
        torch.cat([chosen.unsqueeze(1), corners], dim=1),
    )


def printed(split: str, labels: Tensor, rng: torch.Generator) -> Drawing:
    """Draw digits in many fonts, sizes, colours and small angles. Sources: (font,)."""
    num = len(labels)
    fonts, masks = _choose_glyphs(split, labels, rng)
    pose = Pose(
        scale=uniform(rng, 0.75, 1.1, num),
        angle=uniform(rng, -14, 14, num),
        x=uniform(rng, -0.15, 0.15, num),
        y=uniform(rng, -0.12, 0.12, num),
    )
    light = 0.6 + 0.4 * torch.rand(num, 3, 1, 1, generator=rng)
    dark = 0.35 * torch.rand(num, 3, 1, 1, generator=rng)
    swap = torch.rand(num, 1, 1, 1, generator=rng) < 0.5
    ground, ink = torch.where(swap, dark, light), torch.where(swap, light, dark)
    return Drawing(to_bytes(paint(ground, ink, place(masks, pose))), fonts.unsqueeze(1))


def street(split: str, labels: Tensor, rng: torch.Generator) -> Drawing:
    """Draw house numbers: neighbours cut off, little contrast, blur, noise. Sources: (font,)."""
    num = len(labels)
    fonts, centre = _choose_glyphs(split, labels, rng)
    mask = _with_neighbours(centre, drawing.glyphs(FONTS[split])[fonts - _first_font(split)], rng)
    brightness = uniform(rng, 0.25, 0.75, num, 1, 1, 1)
    ground = brightness + uniform(rng, -0.12, 0.12, num, 3, 1, 1)
    away = torch.where(brightness < 0.5, 1.0, -1.0) * uniform(rng, 0.25, 0.5, num, 1, 1, 1)
    ink = ground + away + uniform(rng, -0.08, 0.08, num, 3, 1, 1)
    ramp = torch.linspace(-1, 1, SIDE)
    across, down = uniform(rng, -0.12, 0.12, 2, num, 1, 1, 1)
    shade = across * ramp.view(1, 1, 1, -1) + down * ramp.view(1, 1, -1, 1)
    picture = blur(paint(ground, ink, mask) + shade, uniform(rng, 0.5, 1.1, num))
    noise = torch.randn(num, 3, SIDE, SIDE, generator=rng) * uniform(rng, 0.02, 0.05, num, 1, 1, 1)
    return Drawing(to_bytes(picture + noise), fonts.unsqueeze(1))


DOMAINS: Mapping[str, Callable[[str, Tensor, torch.Generator], Drawing]] = {
    "handwriting": handwriting,
    "photo": photo,
    "print": printed,
    "street": street,
}


def _cached(path: Path, split: str) -> Arrays | None:
    """Return a split from the cache if it is there, whole, and made by this code."""
    try:
        kept = read_prepared(path, num_classes=10)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DataError as error:
        log.warning("%s. It is drawn again", error)
        return None
    whole = kept["images"].shape == (10 * PER_CLASS[split], SIDE, SIDE, 3)
    return kept if whole and str(kept.get("version")) == version() else None


def _keep(drawn: Mapping[Path, Arrays]) -> None:
    """Write new splits into the cache; without a cache the benchmark works as well."""
    try:
        for path, arrays in drawn.items():
            write_prepared(path, arrays)
    except OSError as error:
        log.warning("minidigits is drawn anew each time, its cache cannot be written: %s", error)


def _sample_digits() -> tuple[Tensor, Tensor]:
    """Return the handwritten digits, (1797, 8, 8) in [0, 1], and their classes."""
    with demo_packages("minidigits"):
        from sklearn.datasets import load_digits
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    return images, torch.tensor(digits.target, dtype=torch.int64)


def _choose_digits(split: str, labels: Tensor, classes: Tensor, rng: torch.Generator) -> Tensor:
    """Choose a handwritten digit for each label, none twice, from the split's own pool.

    The pools do not depend on the domain: a digit that any domain trains on is in no test set.
    """
    chosen = torch.empty_like(labels)
    for digit in range(10):
        own = (classes == digit).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator(0, "minidigits", "pools", digit))]
        pool = own[:TEST_DIGITS] if split == "test" else own[TEST_DIGITS:]
        wanted = (labels == digit).nonzero().flatten()
        chosen[wanted] = pool[torch.randperm(len(pool), generator=rng)[: len(wanted)]]
    return chosen


def _enlarge(digits: Tensor) -> Tensor:
    """Scale 8x8 digits up to smooth strokes: (n, 8, 8) → (n, 1, SIDE, SIDE)."""
    large = F.interpolate(digits.unsqueeze(1), size=(28, 28), mode="bicubic", align_corners=False)
    return F.pad(((large - 0.2) / 0.6).clamp(0, 1), (2, 2, 2, 2))


def _photo_patches(split: str, num: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cut patches from the split's stripes of the photos; return them and (photo, top, left)."""
    with demo_packages("minidigits"):
        from sklearn.datasets import load_sample_image

        photos = torch.tensor(np.stack([load_sample_image(name) for name in PHOTOS]))
    which = torch.randint(len(PHOTOS), (num,), generator=rng)
    top = torch.randint(photos.shape[1] - PATCH + 1, (num,), generator=rng)
    stripe = torch.tensor(STRIPES[split])[torch.randint(len(STRIPES[split]), (num,), generator=rng)]
    left = stripe * STRIPE + torch.randint(STRIPE - PATCH + 1, (num,), generator=rng)
    rows = top.view(-1, 1, 1) + torch.arange(PATCH).view(1, -1, 1)
    columns = left.view(-1, 1, 1) + torch.arange(PATCH).view(1, 1, -1)
    patches = photos[which.view(-1, 1, 1), rows, columns].permute(0, 3, 1, 2).float() / 255
    small = F.interpolate(patches, size=(SIDE, SIDE), mode="area")
    return small, torch.stack([which, top, left], dim=1)


def _first_font(split: str) -> int:
    """Number the fonts of both splits in one row, so that a number names one file."""
    return 0 if split == "train" else len(FONTS["train"])


def _choose_glyphs(split: str, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Choose a font of the split for each label; return the font's number and its glyph."""
    fonts = torch.randint(len(FONTS[split]), labels.shape, generator=rng)
    return fonts + _first_font(split), drawing.glyphs(FONTS[split])[fonts, labels]


def _with_neighbours(centre: Tensor, alphabets: Tensor, rng: torch.Generator) -> Tensor:
    """Set a digit in the middle and digits of its font, mostly cut off, at its sides."""
    num = len(centre)  # (n, CANVAS, CANVAS); alphabets has all ten digits of each picture's font
    scale, angle = uniform(rng, 0.9, 1.1, num), uniform(rng, -7, 7, num)
    x, y = uniform(rng, -0.1, 0.1, num), uniform(rng, -0.1, 0.1, num)
    mask = place(centre, Pose(scale, angle, x, y))
    for side in (-1, 1):
        beside = alphabets[torch.arange(num), torch.randint(10, (num,), generator=rng)]
        apart = drawing.glyph_width(centre) + drawing.glyph_width(beside)
        step = side * scale * (apart + uniform(rng, 0.1, 0.2, num))
        turn = angle * (torch.pi / 180)
        pose = Pose(scale, angle, x + step * turn.cos(), y + step * turn.sin())
        shown = torch.rand(num, 1, 1, 1, generator=rng) < 0.8
        mask = torch.maximum(mask, place(beside, pose) * shown)
    return mask
