"""Kept channels as short text, so that every round can be remembered for the price of a line.

A group of 12 channels that keeps the first three is "12:7": its size, and a hexadecimal number in
which bit i says that channel i stays.
"""

import re
from dataclasses import dataclass

from dapperfl.core.submodel import Submodel
from dapperfl.errors import CheckpointError


@dataclass(frozen=True)
class Mask:
    """Which channels of one group stay."""

    size: int
    bits: int  # bit i: channel i

    @classmethod
    def whole(cls, size: int) -> "Mask":
        """Return the mask that keeps everything."""
        return cls(size, (1 << size) - 1)

    def count(self, low: int = 0, high: int | None = None) -> int:
        """Count the kept channels from one channel on, and before another."""
        end = self.size if high is None else high
        return (self.bits >> low & (1 << (end - low)) - 1).bit_count()

    def channels(self) -> list[int]:
        """Return the kept channels in order."""
        return [channel for channel in range(self.size) if self.bits >> channel & 1]

    def __and__(self, other: "Mask") -> "Mask":
        """Return what both keep."""
        return Mask(self.size, self.bits & other.bits)


def pack(submodel: Submodel) -> dict[str, str]:
    """Return the mask of every group that loses channels, by the group's name."""
    return {
        group.name: f"{group.size}:{sum(1 << channel for channel in channels.tolist()):x}"
        for group, channels in submodel.kept.items()
        if len(channels) < group.size
    }


def unpack(text: str) -> Mask:
    """Read one mask that `pack` wrote.

    Raises:
        CheckpointError: If the text is no mask.
    """
    found = re.fullmatch(r"(\d{1,9}):([0-9a-f]+)", text)
    if found is None:
        raise CheckpointError(f'"{text}" is no mask of channels; expected one like "12:7"')
    mask = Mask(int(found[1]), int(found[2], 16))
    if mask.bits.bit_length() > mask.size:
        raise CheckpointError(f'the mask "{text}" keeps a channel that its group does not have')
    return mask
