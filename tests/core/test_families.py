"""Families: which channels one decision cuts, and which of them may go."""

import pytest
import torch
from torch import nn

from dapperfl.core.families import Family, families
from dapperfl.core.tracing import Producer, Trace


def layers(**counts: int) -> Trace:
    """Return a trace of layers that write so many channels, numbered one after another."""
    trace = Trace({}, 2)
    for name, count in counts.items():
        trace.producers.append(Producer(name, len(trace.ties), count, name, nn.Identity()))
        trace.ties.grow(count)
        trace.bundles.grow(count)
    return trace


def row(*channels: int) -> torch.Tensor:
    return torch.tensor(channels)


def test_a_layer_alone_is_a_family_of_single_channels():
    (family,) = families(layers(a=3))
    assert family == Family("a", False, {0: 0, 1: 1, 2: 2}, ((0,), (1,), (2,)), "")


def test_tied_channels_share_a_place():
    trace = layers(a=3, b=3)
    trace.tie(row(0, 1, 2), row(3, 4, 5), "")
    trace.streams.add(4)
    (family,) = families(trace)
    assert family.positions == {0: 0, 3: 0, 1: 1, 4: 1, 2: 2, 5: 2}
    assert family.stream


def test_bundles_hold_places_that_stay_or_go_together():
    trace = layers(a=4)
    trace.bundle(torch.tensor([[0, 2], [1, 3]]), "")
    assert families(trace)[0].bundles == ((0, 2), (1, 3))


def test_pinned_channels_stay_and_the_others_may_go():
    trace = layers(a=4)
    trace.tie(row(0, 1, 2, 3), row(-1, 1, 2, 3), "meets a constant")
    (family,) = families(trace)
    assert family.positions == {1: 0, 2: 1, 3: 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda trace: trace.pin(row(0, 1, 2, 3), "mixed"), "mixed"),
        (lambda trace: trace.bundle(row(0, 1, 2, 3)[None], ""), "stay or go together"),
        (lambda trace: trace.bundle(row(0, 1, 2)[None], ""), "bundles differ in size"),
        (lambda trace: trace.bundle(torch.tensor([[0, 1, 2, 3, -1]]), "uncut"), "uncut"),
    ],
)
def test_a_family_that_cannot_be_cut_says_why(change, reason):
    trace = layers(a=4)
    change(trace)
    (family,) = families(trace)
    assert reason in family.reason
    assert not family.positions


def test_a_layer_in_a_part_of_its_family_keeps_a_channel():
    trace = layers(a=2, b=2, c=4)
    trace.tie(row(0, 1, 2, 3), row(4, 5, 6, 7), "")
    (family,) = families(trace)
    assert family.positions == {1: 0, 5: 0, 3: 1, 7: 1}


def test_layers_that_never_meet_are_families_in_order_of_appearance():
    trace = layers(a=2, b=3, c=2)
    trace.tie(row(0, 1), row(5, 6), "")
    assert [(family.name, len(family.bundles)) for family in families(trace)] == [
        ("a", 2),
        ("b", 3),
    ]
