"""Differences between two variants, seed by seed, with an interval.

Seeds decide who holds which pictures, so runs of one seed are alike; their differences say more
than two means. The interval is Student's, of the mean difference over seeds, at 95 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import atan, cos, pi, sin, sqrt

from dapperfl.lab.groups import spread

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds."""

    mean: float
    half: float | None  # half the interval's width; None for a single seed
    count: int

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.mean:+.2f}"
        low, high = self.mean - self.half, self.mean + self.half
        return f"{self.mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Return how far we are above them, over the seeds that both have; None where none is."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    over = spread(ours[seed] - theirs[seed] for seed in seeds)
    if over.std is None:
        return Difference(over.mean, None, 1)
    factor = student_quantile(len(seeds) - 1)
    return Difference(over.mean, factor * over.std / sqrt(len(seeds)), len(seeds))


def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return t such that a Student variable is between -t and t with this probability."""
    low, high = 0.0, 1.0
    while student_probability(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if student_probability(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return high


def student_probability(t: float, freedom: int) -> float:
    """Return the probability of a value between -t and t (Abramowitz and Stegun, 26.7.3-4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power + 1) / (power + 2)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
