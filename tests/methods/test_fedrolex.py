import pytest
import torch
from tests.methods.rig import assigned, round_of, server_of

from dapperfl.methods.fedrolex import FedRolex
from dapperfl.methods.heterofl import HeteroFL

FEDROLEX = FedRolex(multiple=1)


def windows(method: FedRolex, device: int, rounds: int) -> list[dict[str, list[int]]]:
    server, seen = server_of(method, (0.0, 0.6)), []
    for _ in range(rounds):
        seen.append(assigned(method, server, device).model.submodel.to_lists())
        server = server.advance(server.weights)
    return seen


@pytest.mark.parametrize("step", [1, 3])
def test_the_window_starts_where_the_round_says_and_wraps_around(step):
    for done, lists in enumerate(windows(FedRolex(multiple=1, step=step), 1, 40)):
        for group, size in (("conv1", 16), ("stem", 8)):
            held, start = lists[group], step * done % size
            assert held == sorted((start + i) % size for i in range(len(held)))


def test_after_as_many_rounds_as_channels_each_was_held_as_often_as_the_window_is_wide():
    seen = windows(FEDROLEX, 1, 16)
    counts = [sum(channel in lists["conv1"] for lists in seen) for channel in range(16)]
    assert counts == [len(seen[0]["conv1"])] * 16
    assert len(seen[0]["conv1"]) < 16


def test_a_device_with_the_full_net_holds_everything_in_order():
    for done in range(3):
        server = server_of(FEDROLEX, (0.0, 0.6))
        for _ in range(done):
            server = server.advance(server.weights)
        model = assigned(FEDROLEX, server, 0).model
        assert not model.submodel.kept
        assert all(torch.equal(model.weights[n], t) for n, t in server.weights.items())


def test_a_rolled_window_is_written_back_where_it_came_from():
    server = server_of(FEDROLEX, (0.6,))
    for _ in range(14):  # start 14 of 16: the window is cut in two by the end
        server = server.advance(server.weights)
    held = assigned(FEDROLEX, server, 0).model.submodel.to_lists()["conv1"]
    assert {0, 15} <= set(held)
    after = round_of(FEDROLEX, server, [lambda t: 2 * t])
    weight, before = after.weights["bn1.weight"], server.weights["bn1.weight"]
    expected = before.clone()
    expected[held] *= 2
    assert torch.equal(weight, expected)


def test_in_the_first_round_it_is_heterofl():
    ours, theirs = FEDROLEX, HeteroFL(multiple=1)
    changes = [lambda t: t + 1, lambda t: t + 3]
    first = round_of(ours, server_of(ours, (0.0, 0.6)), changes)
    second = round_of(theirs, server_of(theirs, (0.0, 0.6)), changes)
    assert all(torch.equal(first.weights[n], t) for n, t in second.weights.items())
    assert (FedRolex().step, FedRolex().measures(100)) == (1, True)
    assert not FedRolex(bn_statistics="average").measures(1)


def test_the_whole_net_is_handed_out_also_where_nobody_holds_it():
    server = server_of(FEDROLEX, (0.6, 0.3))
    assert FEDROLEX.deliver(server) is server.model
