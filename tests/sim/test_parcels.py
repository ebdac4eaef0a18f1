"""Messages between processes: whole, tidy, and not sent twice."""

import os
import socket
from collections.abc import Iterator

import pytest
import torch
from tests.tiny import tiny_examples, tiny_graph, tiny_net
from torch import nn

from dapperfl.core.scores import l1_scores
from dapperfl.core.submodel import Submodel
from dapperfl.data.batches import Batches
from dapperfl.sim.parcels import Channel

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    left, right = socket.socketpair()
    with left, right:
        yield Channel(left, remember=True), Channel(right)


def passed(ends: Ends, message: object, **names: object):
    ends[0].send(message, names)
    return ends[1].open(ends[1].receive(), names)


def test_tensors_of_all_kinds_arrive_as_they_were(ends):
    turned = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sent = {
        "floats": torch.rand(3, 5),
        "number": torch.tensor(7),
        "none": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
        "half": torch.rand(3).to(torch.bfloat16),
        "turned": turned,
        "every other": torch.arange(10)[::2],
        "transposed": torch.rand(4, 6).T,
    }
    got = passed(ends, sent)
    assert got.keys() == sent.keys()
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name
    assert got["turned"].stride() == turned.stride()
    assert got["every other"].is_contiguous()
    assert all(tensor.data_ptr() % 64 == 0 for tensor in got.values())


def test_what_arrived_is_a_copy(ends):
    sent = torch.zeros(3)
    got = passed(ends, sent)
    got += 1
    assert torch.equal(sent, torch.zeros(3))


def test_a_tensor_of_the_last_message_is_not_sent_again(ends):
    weights = torch.rand(1000)
    first = passed(ends, {"weights": weights, "round": 1})
    second = passed(ends, {"weights": weights, "round": 2})
    assert second["weights"] is first["weights"]
    assert second["round"] == 2


def test_a_tensor_that_was_changed_is_sent_again(ends):
    weights = torch.zeros(4)
    passed(ends, weights)
    weights.add_(1)
    assert torch.equal(passed(ends, weights), torch.ones(4))


def test_a_tensor_of_an_older_message_is_sent_again(ends):
    weights = torch.rand(4)
    passed(ends, weights)
    passed(ends, "something else")
    assert torch.equal(passed(ends, weights), weights)


def test_a_net_stays_a_net(ends):
    net = tiny_net()
    got = passed(ends, net)
    assert all(isinstance(each, nn.Parameter) and each.requires_grad for each in got.parameters())
    assert torch.equal(got(torch.ones(2, 3, 6, 6)), net(torch.ones(2, 3, 6, 6)))


def test_known_objects_go_by_their_names(ends):
    graph = tiny_graph()
    kept = l1_scores(graph, tiny_net().state_dict()).top(0.5)
    got: Submodel = passed(ends, kept, graph=graph)
    assert got.graph is graph
    assert got.to_lists() == kept.to_lists()
    assert got.shapes == kept.shapes


def test_batches_leave_behind_what_they_worked_out(ends):
    batches = Batches(tiny_examples(6), batch_size=4)
    next(batches.epoch(torch.Generator()))
    got: Batches = passed(ends, batches)
    assert "_sheet" in vars(batches)
    assert "_sheet" not in vars(got)
    mine, theirs = (next(each.epoch(torch.Generator())) for each in (batches, got))
    assert torch.equal(mine.x, theirs.x)


def test_files_do_not_grow_with_messages(ends):
    passed(ends, torch.rand(10))
    before = len(os.listdir("/dev/fd"))
    kept = [passed(ends, torch.rand(10 + 100 * number)) for number in range(5)]
    assert len(kept) == 5
    assert len(os.listdir("/dev/fd")) == before


def test_a_later_message_leaves_an_earlier_one_alone(ends):
    first = passed(ends, torch.zeros(10))
    passed(ends, torch.ones(10))
    assert torch.equal(first, torch.zeros(10))


def test_somebody_who_hangs_up_is_noticed(ends):
    ends[0].close()
    with pytest.raises(EOFError, match="the other side is gone"):
        ends[1].receive()
