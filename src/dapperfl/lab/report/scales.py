"""From values to positions on paper, with round numbers at the axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """A linear map of [low, high] to positions between start and end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return a value's position, to a hundredth."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, most: int = 6, least_step: float = 0) -> list[float]:
        """Return at most so many round values, all inside the scale."""
        step = max(_round_step((self.high - self.low) / most), least_step)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(number * step, 10) for number in range(first, last + 1)]


def around(values: Iterable[float], *, floor: float, ceiling: float) -> tuple[float, float]:
    """Return round limits that hold all values, with some air, inside what is possible."""
    given = list(values)
    low, high = min(given), max(given)
    air = max((high - low) * 0.05, 1.0)
    step = _round_step((high - low + 2 * air) / 6)
    lower = math.floor((low - air) / step) * step
    upper = math.ceil((high + air) / step) * step
    return max(lower, floor), min(upper, ceiling)


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, … (any power of ten) that is not below."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
