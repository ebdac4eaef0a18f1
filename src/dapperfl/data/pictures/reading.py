"""Picture files as tensors, for whoever has a trained net and pictures of their own."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from dapperfl.data.pictures.decoding import decode_all
from dapperfl.errors import DataError


def read_pictures(paths: Iterable[Path | str], side: int) -> Tensor:
    """Return picture files as training had them: squares of bytes, (n, 3, side, side).

    Args:
        paths: The files, of any kind that Pillow reads.
        side: Pixels of a side.

    Raises:
        DataError: One of them cannot be read, or there are none.
    """
    if isinstance(paths, str | Path):
        raise DataError(f"{paths} is one path; read_pictures takes a list of them")
    files = [Path(path) for path in paths]
    if not files:
        raise DataError("there are no pictures to read; check the names of the files")
    found = decode_all(files, side)
    for path, reason in zip(files, found.reasons, strict=True):
        if reason:
            raise DataError(f"{path} cannot be read: {reason}; leave it out, or mend it")
    return torch.from_numpy(found.images).permute(0, 3, 1, 2).contiguous()
