"""Drawing on whole batches of small pictures: glyphs, where they stand, colours, blur.

Only font files that matplotlib brings along are used, so the pictures do not depend on the fonts
installed on a machine. Pixels are floats in [0, 1] until `to_bytes`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dapperfl.data.extras import demo_packages
from dapperfl.errors import DataError

SIDE = 32  # of a finished picture
CANVAS = 64  # of a glyph: drawn twice as large, then averaged down
GLYPH_HEIGHT = 48  # of a digit on its canvas


@dataclass(frozen=True)
class Pose:
    """Where each glyph of a batch stands; every field has one entry per picture."""

    scale: Tensor
    angle: Tensor  # degrees, positive turns clockwise
    x: Tensor  # of the centre; the picture reaches from -1 to 1
    y: Tensor


def uniform(rng: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Draw floats evenly between two bounds."""
    return low + (high - low) * torch.rand(shape, generator=rng)


def glyphs(fonts: Sequence[str]) -> Tensor:
    """Draw the ten digits of each font file, all equally tall and centred."""
    with demo_packages("drawing digits"):
        import matplotlib
        from PIL import ImageFont
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    drawn = []
    for name in fonts:
        try:
            font = ImageFont.truetype(
                str(folder / name), 2 * GLYPH_HEIGHT, layout_engine=ImageFont.Layout.BASIC
            )
        except OSError as error:
            raise DataError(
                f"the font {name} is not in {folder} ({error}); "
                'reinstall matplotlib: pip install --force-reinstall "dapperfl[demo]"'
            ) from error
        drawn.append(torch.stack([_glyph(font, str(digit)) for digit in range(10)]))
    return torch.stack(drawn)  # (fonts, 10, CANVAS, CANVAS)


def _glyph(font: object, text: str) -> Tensor:
    """Draw one character as a mask, cropped, scaled to the common height and centred."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    assert isinstance(font, ImageFont.FreeTypeFont)
    large = Image.new("L", (4 * CANVAS, 4 * CANVAS))
    ImageDraw.Draw(large).text((CANVAS, CANVAS), text, fill=255, font=font)
    tight = large.crop(large.getbbox())
    width = round(tight.width * GLYPH_HEIGHT / tight.height)
    digit = tight.resize((min(width, CANVAS - 4), GLYPH_HEIGHT), Image.Resampling.LANCZOS)
    canvas = Image.new("L", (CANVAS, CANVAS))
    canvas.paste(digit, ((CANVAS - digit.width) // 2, (CANVAS - digit.height) // 2))
    return torch.tensor(np.asarray(canvas), dtype=torch.float32) / 255


def glyph_width(masks: Tensor) -> Tensor:
    """Measure how wide each glyph is, as a share of its canvas."""
    return (masks.amax(dim=1) > 0).sum(dim=1) / CANVAS


def place(masks: Tensor, pose: Pose) -> Tensor:
    """Set each glyph into its picture: (n, CANVAS, CANVAS) → (n, 1, SIDE, SIDE)."""
    radians = pose.angle * (math.pi / 180)
    cos, sin = radians.cos() / pose.scale, radians.sin() / pose.scale
    turn = torch.stack([cos, sin, -sin, cos], dim=1).view(-1, 2, 2)  # picture → glyph
    centre = torch.stack([pose.x, pose.y], dim=1).unsqueeze(2)
    theta = torch.cat([turn, -turn @ centre], dim=2)
    grid = F.affine_grid(theta, [len(masks), 1, 2 * SIDE, 2 * SIDE], align_corners=False)
    return F.avg_pool2d(F.grid_sample(masks.unsqueeze(1), grid, align_corners=False), 2)


def paint(ground: Tensor, colour: Tensor, mask: Tensor) -> Tensor:
    """Lay a colour over a background wherever the mask says so."""
    return ground + (colour - ground) * mask


def blur(pictures: Tensor, sigma: Tensor) -> Tensor:
    """Blur each picture by its own Gaussian."""
    num, channels, height, width = pictures.shape
    steps = torch.arange(-3, 4, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (steps / sigma.unsqueeze(1)) ** 2)
    kernel = (kernel / kernel.sum(dim=1, keepdim=True)).repeat_interleave(channels, dim=0)
    kernel = kernel.view(-1, 1, 1, 7)
    flat = F.pad(pictures, (3, 3, 3, 3), mode="replicate").view(1, -1, height + 6, width + 6)
    flat = F.conv2d(flat, kernel, groups=num * channels)
    flat = F.conv2d(flat, kernel.transpose(2, 3), groups=num * channels)
    return flat.view(num, channels, height, width)


def to_bytes(pictures: Tensor) -> Tensor:
    """Round pictures in [0, 1] to bytes, channels last: (n, SIDE, SIDE, 3)."""
    full = pictures.expand(-1, 3, -1, -1).clamp(0, 1)
    return (full * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
