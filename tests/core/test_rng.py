import random
from typing import Any

import numpy
import torch

from dapperfl.core.rng import derive_seed, foreign, foreign_seeded, generator, set_foreign


def test_the_path_alone_decides_the_stream():
    first, second = (torch.rand(4, generator=generator(1, "batches", 3, 7)) for _ in range(2))
    assert torch.equal(first, second)


def test_different_paths_give_different_streams():
    paths: list[tuple[Any, ...]] = [
        (0,),
        (1,),
        (0, 1),
        (0, "1"),
        (0, 1, 2),
        (0, 12),
        (0, "a"),
        (0, "a", 1),
    ]
    assert len({derive_seed(*path) for path in paths}) == len(paths)


def test_nothing_global_is_touched():
    before = torch.get_rng_state()
    generator(5, "x").initial_seed()
    assert torch.equal(before, torch.get_rng_state())


def draw() -> tuple[float, float, float]:
    return random.random(), numpy.random.random(), numpy.random.normal()


def test_generators_outside_torch_are_lent_and_put_back():
    before = foreign()
    with foreign_seeded(2**40 + 5):
        first = draw()
        assert foreign() != before
    assert foreign() == before
    with foreign_seeded(2**40 + 5):
        halfway = foreign()
        assert draw() == first
        set_foreign(halfway)
        assert draw() == first
