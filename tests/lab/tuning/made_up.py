"""A judge that trains nothing: the score follows from the values by a formula."""

import math
from collections.abc import Iterator, Sequence

from dapperfl.lab.config import Config
from dapperfl.lab.tuning.judging import Broken, Done, Message, Step


def score(gamma: float, recovery: str, seed: int) -> float:
    """Return 90 at the best, gamma = 0.01 with recovery "paper" and seed 0."""
    return 90 - 10 * abs(math.log10(gamma) + 2) - 5 * (recovery != "paper") + seed


class MadeUp:
    """Reaches its score in equal steps; an alpha_0 of 0 breaks down, one of 1 fails."""

    judged: list[float]  # every gamma so far; a test sets it

    def judge(self, config: Config, seeds: Sequence[int]) -> Iterator[Message]:
        fields = config.method.fields
        self.judged.append(fields["gamma"])
        if fields["alpha_0"] in (0, 1):
            yield Step(1, 1.0)
            yield Broken("it broke", hopeless=fields["alpha_0"] == 0)
            return
        ends = [score(fields["gamma"], fields["recovery"], seed) for seed in seeds]
        for index, end in enumerate(ends):
            for number in range(1, config.rounds + 1):
                yield Step(index * config.rounds + number, end * number / config.rounds)
        mean = sum(ends) / len(ends)
        yield Done(mean, {"dark": mean - 1, "light": mean + 1})
