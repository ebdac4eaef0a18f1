"""What tells the pictures of one run from those of another."""

from dataclasses import replace

from dapperfl.data.benchmark import Federation
from dapperfl.lab.pictures import mark_of
from tests.tiny import tiny_examples


def test_a_mark_is_of_who_holds_what_not_of_pixels():
    examples = tiny_examples(6)
    world = Federation((), {0: examples}, {"sky": examples}, ("a", "b", "c"), (0.0,), (1.0,))
    lighter = replace(examples, images=examples.images // 2)
    assert mark_of(replace(world, train={0: lighter})) == mark_of(world)
    others = [
        replace(world, train={1: examples}),
        replace(world, train={}, validation={0: tiny_examples(7)}),
        replace(world, test={"sea": examples}),
        replace(world, test={"sky": tiny_examples(5)}),
        replace(world, classes=("a", "b", "d")),
    ]
    assert len({mark_of(each) for each in [world, *others]}) == 6
