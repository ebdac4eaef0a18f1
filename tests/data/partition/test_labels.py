import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapperfl.core.rng import generator
from dapperfl.data.partition.labels import by_class, repair


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_a_repaired_draw_has_every_label_and_no_more_pictures_than_it_needs(
    labels: list[int], size: int, seed: int
) -> None:
    held = torch.randperm(len(labels), generator=generator(seed))[:size]
    mended = repair(held, labels, by_class(labels), generator(seed, "repair")).tolist()
    assert {labels[place] for place in mended} == set(labels)
    assert len(mended) == len(set(mended)) == max(len(held), len(set(labels)))
    missed = set(labels) - {labels[place] for place in held.tolist()}
    assert {labels[place] for place in set(mended) - set(held.tolist())} == missed
    assert len(set(mended) - set(held.tolist())) == len(missed)


def test_a_complete_draw_is_left_alone() -> None:
    held = torch.tensor([3, 0, 1])
    labels = [0, 1, 0, 2]
    assert repair(held, labels, by_class(labels), generator(0)).tolist() == [3, 0, 1]


def test_the_positions_of_each_class_are_found() -> None:
    assert by_class([2, 0, 2, 5]) == {0: [1], 2: [0, 2], 5: [3]}


def test_what_is_given_and_taken_is_drawn() -> None:
    labels = [0, 0, 0, 0, 1, 1, 1]
    held, places = torch.tensor([0, 1, 2]), by_class(labels)
    mended = [repair(held, labels, places, generator(seed)).tolist() for seed in range(60)]
    seen = {tuple(sorted(each)) for each in mended}
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert seen == {(*pair, new) for pair in pairs for new in (4, 5, 6)}
