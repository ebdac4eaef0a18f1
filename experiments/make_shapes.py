"""Draw a folder of pictures to try methods on: `python experiments/make_shapes.py DIR`.

Eight shapes in four domains (photo, sketch, neon, webcam), turned, stretched and moved at random: a
benchmark that needs no download, and that no setting of the package was chosen on.

    dapperfl compare experiments/minidigits.toml --set data=folder --set data.root=DIR
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw, ImageFilter

Points = list[tuple[float, float]]  # around the origin, about 1 away from it
Colour = tuple[int, int, int]
SIDE, SHARP = 32, 4  # drawn so many times larger
PICTURES = {"photo": 150, "sketch": 100, "neon": 100, "webcam": 75}  # of a class


def _polygon(corners: int) -> Points:
    return _turned([2 * math.pi * corner / corners for corner in range(corners)], [1.0] * corners)


def _turned(angles: list[float], radii: list[float]) -> Points:
    return [(r * math.sin(a), -r * math.cos(a)) for a, r in zip(angles, radii, strict=True)]


def _star(tips: int, inner: float) -> Points:
    angles = [math.pi * corner / tips for corner in range(2 * tips)]
    return _turned(angles, [1.0, inner] * tips)


def _cross(arm: float) -> Points:
    quarter = [(-arm, -1.0), (arm, -1.0), (arm, -arm)]
    turns: list[Callable[[float, float], tuple[float, float]]] = [
        lambda x, y: (x, y), lambda x, y: (-y, x), lambda x, y: (-x, -y), lambda x, y: (y, -x)
    ]  # fmt: skip
    return [turn(x, y) for turn in turns for x, y in quarter]


def _crescent() -> Points:
    angles = [math.pi * step / 20 for step in range(21)]
    outside = [(math.cos(a), math.sin(a)) for a in angles]
    return outside + [(0.85 * x, 0.45 * y) for x, y in reversed(outside)]


SHAPES: dict[str, Points] = {
    "arrow": [(0, -1), (0.8, 0), (0.3, 0), (0.3, 1), (-0.3, 1), (-0.3, 0), (-0.8, 0)],
    "circle": _polygon(40),
    "crescent": _crescent(),
    "cross": _cross(0.33),
    "hexagon": _polygon(6),
    "square": _polygon(4),
    "star": _star(5, 0.42),
    "triangle": _polygon(3),
}


def _placed(shape: Points, rng: Random) -> Points:
    """Turn, stretch and move a shape, and shake its corners."""
    turn, size, stretch = rng.uniform(-0.6, 0.6), rng.uniform(0.5, 0.85), rng.uniform(0.75, 1.0)
    side = SIDE * SHARP
    x0, y0 = (side * rng.uniform(0.42, 0.58) for _ in range(2))
    placed = []
    for x, y in shape:
        x, y = x * stretch + rng.gauss(0, 0.03), y + rng.gauss(0, 0.03)
        x, y = x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)
        placed.append((x0 + side / 2 * size * x, y0 + side / 2 * size * y))
    return placed


def _colour(rng: Random, low: int, high: int) -> Colour:
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)


def _noisy(image: Image.Image, rng: Random, strength: float) -> Image.Image:
    grain = Image.frombytes("L", image.size, rng.randbytes(image.width * image.height))
    return Image.blend(image, grain.filter(ImageFilter.GaussianBlur(1)).convert("RGB"), strength)


def photo(points: Points, rng: Random) -> Image.Image:
    """Draw a filled shape with a shadow before a coloured, grainy background."""
    image = Image.new("RGB", (SIDE * SHARP,) * 2, _colour(rng, 60, 220))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y, r = (rng.uniform(0, SIDE * SHARP) for _ in range(3))
        draw.ellipse((x - r / 2, y - r / 2, x + r / 2, y + r / 2), fill=_colour(rng, 60, 220))
    draw.polygon([(x + 8, y + 8) for x, y in points], fill=(40, 40, 40))
    draw.polygon(points, fill=_colour(rng, 0, 255))
    return _noisy(image.filter(ImageFilter.GaussianBlur(2)), rng, 0.15)


def sketch(points: Points, rng: Random) -> Image.Image:
    """Draw an outline in pencil on paper."""
    image = Image.new("RGB", (SIDE * SHARP,) * 2, (250, 248, 240))
    shade = rng.randint(20, 110)
    ImageDraw.Draw(image).line([*points, points[0]], fill=(shade,) * 3, width=rng.randint(3, 8))
    return image


def neon(points: Points, rng: Random) -> Image.Image:
    """Draw a glowing outline in the dark."""
    image = Image.new("RGB", (SIDE * SHARP,) * 2, _colour(rng, 0, 25))
    ImageDraw.Draw(image).line([*points, points[0]], fill=_colour(rng, 90, 255), width=12)
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(2, 5)))


def webcam(points: Points, rng: Random) -> Image.Image:
    """Draw a filled shape with little contrast, blurred, noisy and tinted."""
    ground = rng.randint(90, 140)
    image = Image.new("RGB", (SIDE * SHARP,) * 2, (ground, ground, ground + 30))
    level = ground + rng.choice((-1, 1)) * rng.randint(30, 60)
    ImageDraw.Draw(image).polygon(points, fill=(level, level, level + 30))
    return _noisy(image.filter(ImageFilter.GaussianBlur(6)), rng, 0.3)


DOMAINS = {"photo": photo, "sketch": sketch, "neon": neon, "webcam": webcam}


def draw_all(root: Path) -> None:
    """Write `root/<domain>/<shape>/<number>.png`; the same pictures every time."""
    for domain, draw in DOMAINS.items():
        for name, shape in SHAPES.items():
            rng = Random(f"{domain} {name}")
            folder = root / domain / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(PICTURES[domain]):
                image = draw(_placed(shape, rng), rng)
                image.resize((SIDE, SIDE), Image.Resampling.BOX).save(folder / f"{number:03}.png")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python experiments/make_shapes.py DIR")
    draw_all(Path(sys.argv[1]))
