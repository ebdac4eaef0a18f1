"""Pictures one at a time, as the usual pipeline has them: Pillow, then a tensor, then a DataLoader.

Padding, crop, mirror, conversion and normalisation are those of torchvision's transforms of these
names; torchvision itself is not needed. Scaling to 32 × 32, which the release does here as well,
has been done before, to the baseline's advantage.
"""

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from dapperfl.data.benchmark import Examples

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PAD = 4


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures that are transformed when they are asked for; shifted and mirrored to train on."""

    def __init__(self, examples: Examples, *, train: bool) -> None:
        arrays = examples.images.cpu().permute(0, 2, 3, 1).contiguous().numpy()
        self.pictures = [Image.fromarray(array) for array in arrays]
        self.labels = examples.labels.tolist()
        self.train = train
        self.mean, self.std = (torch.tensor(each).view(-1, 1, 1) for each in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.pictures[index]
        if self.train:
            picture = mirrored(cropped(picture))
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
        return pixels.float().div(255).sub(self.mean).div(self.std), self.labels[index]


def cropped(picture: Image.Image) -> Image.Image:
    """Cut a piece of the picture's own size out of it, with a margin of zeros around it."""
    width, height = picture.size
    left, top = torch.randint(2 * PAD + 1, (2,)).tolist()
    padded = ImageOps.expand(picture, border=PAD, fill=0)
    return padded.crop((left, top, left + width, top + height))


def mirrored(picture: Image.Image) -> Image.Image:
    """Mirror every other picture."""
    if torch.rand(()) < 0.5:
        return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return picture
