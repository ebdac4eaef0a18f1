"""Shadows: which entries belong to which channel, at next to no cost."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dapperfl.core.shadows import Ties, blank, distinct, distinct_pairs, slim, spread, varies


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_ties_are_the_connected_numbers_and_the_smallest_stands_for_them(pairs):
    ties = Ties(10)
    for first, second in pairs:
        ties.unite(first, second)
    reached = {number: {number} for number in range(10)}
    for _ in range(10):
        for first, second in pairs:
            reached[first] = reached[second] = reached[first] | reached[second]
    for number in range(10):
        assert ties.root(number) == min(reached[ties.root(number)] | {number})
    for first, second in pairs:
        assert ties.root(first) == ties.root(second)


def test_numbers_that_join_later_are_on_their_own():
    ties = Ties(2)
    ties.unite(0, 1)
    ties.grow(2)
    assert [ties.root(number) for number in range(len(ties))] == [0, 0, 2, 3]


def test_a_shadow_changes_along_its_channels_only():
    shadow = spread(torch.tensor([4, 5, 6]), 1, torch.Size((2, 3, 8, 8)))
    assert [varies(shadow, axis) for axis in range(4)] == [False, True, False, False]
    assert slim(shadow).shape == (1, 3, 1, 1)
    assert distinct(shadow) == [4, 5, 6]
    assert shadow.untyped_storage().nbytes() == 3 * 8
    assert distinct(blank((2, 3))) == [-1]
    assert not varies(blank(()), 0)


def test_a_materialised_shadow_is_judged_by_its_entries():
    shadow = spread(torch.tensor([4, 5]), 1, torch.Size((2, 2, 3))).clone()
    assert [varies(shadow, axis) for axis in range(3)] == [False, True, False]


def test_pairs_of_entries_are_named_once():
    first = spread(torch.tensor([0, 1]), 1, torch.Size((2, 2, 4)))
    second = torch.cat([first[:, :1] + 5, torch.full((2, 1, 4), -1)], 1)
    assert set(distinct_pairs(first, second)) == {(0, 5), (1, -1)}
    assert not list(distinct_pairs(torch.empty(0, dtype=torch.long), torch.empty(0)))
