from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.worlds import world
from tests.runtime.letters import (
    ASKED,
    CODEC,
    DEVICE,
    SHARED,
    STAMP,
    TASK,
    assert_same,
    closed,
    moments,
    opened,
    update,
    with_weights,
)
from torch import Tensor, nn

from dapperfl import methods
from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    LeftOut,
    Moments,
    StatisticsTask,
)
from dapperfl.core.net import Batch
from dapperfl.core.state import State
from dapperfl.runtime.guard import GuardSettings, check_task, expected_shared
from dapperfl.runtime.inbox import Inbox, Ledger
from dapperfl.runtime.local import Trade
from dapperfl.runtime.wire import Codec, Reply, Stamp, parcels
from dapperfl.sim.loop import Runner
from dapperfl.sim.simulator import Simulator

GOOD = CODEC.encode_reply(update(), STAMP)
BAD: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)) * 8,
    "half of it": GOOD[: len(GOOD) // 2],
    "an older round": CODEC.encode_reply(update(), Stamp("run-1", 6)),
    "a later round": CODEC.encode_reply(update(), Stamp("run-1", 8)),
    "another run": CODEC.encode_reply(update(), Stamp("run-0", 7)),
    "another device": CODEC.encode_reply(update(device=replace(DEVICE, id=2)), STAMP),
    "moments": CODEC.encode_reply(moments(), STAMP),
    "not a number": CODEC.encode_reply(with_weights({"fc.bias": torch.full((3,), nan)}), STAMP),
    "absurd": CODEC.encode_reply(with_weights({"fc.bias": torch.full((3,), 1e20)}), STAMP),
    "no samples": CODEC.encode_reply(update(num_samples=0), STAMP),
    "fewer than none": CODEC.encode_reply(update(num_samples=-5), STAMP),
    "a billion": CODEC.encode_reply(update(num_samples=10**9), STAMP),
    "nothing shared": CODEC.encode_reply(update(shared={}), STAMP),
}


def inbox(**changes) -> Inbox:
    return Inbox(CODEC, "run-1", SHARED, **changes)


def reason(reply: Reply) -> str:
    assert isinstance(reply, LeftOut)
    return reply.reason


def test_a_good_reply_is_handed_on():
    received = inbox().open(GOOD, TASK)
    assert isinstance(received.message, ClientUpdate)
    assert_same(received.message.model.weights, update().model.weights)
    assert received.num_bytes == len(GOOD)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_left_out_with_its_reason_and_counted(kind):
    box = inbox()
    reply = box.open(BAD[kind], TASK).message
    assert reply.device == DEVICE
    assert reason(reply).startswith("refused: ")
    assert len(reason(reply)) > len("refused: ") + 10
    assert box.ledger.refused == {3: 1}
    assert box.ledger.strikes == {3: 1}
    assert isinstance(box.open(GOOD, TASK).message, ClientUpdate)  # the round goes on
    assert box.ledger.refused == {3: 1}
    assert box.ledger.strikes == {}


def test_a_reason_is_one_short_line_whatever_comes():
    many = {f"{number}" + "x" * 200: torch.zeros(1) for number in range(50)}
    data = CODEC.encode_reply(update(shared=many), STAMP)
    text = reason(inbox().open(data, TASK).message)
    assert len(text) == 300
    assert text.isprintable()


def test_a_repeated_reply_is_refused():
    box = inbox()
    box.open(GOOD, TASK)
    assert "answered already" in reason(box.open(GOOD, TASK).message)
    asked = box.open(CODEC.encode_reply(moments(), STAMP), ASKED).message
    assert isinstance(asked, Moments)  # the other phase of the round is another question
    assert "answered already" in reason(
        box.open(CODEC.encode_reply(moments(), STAMP), ASKED).message
    )


def test_a_reply_replayed_in_the_next_round_is_refused():
    box = inbox()
    box.open(GOOD, TASK)
    later = replace(TASK, round_num=8)
    assert "belongs to round 7, this is round 8" in reason(box.open(GOOD, later).message)
    fresh = CODEC.encode_reply(update(), Stamp("run-1", 8))
    assert isinstance(box.open(fresh, later).message, ClientUpdate)
    assert "answered already" in reason(box.open(GOOD, TASK).message)  # round 7 is over for it


def test_three_bad_replies_in_a_row_put_a_device_aside():
    box = inbox()
    for _ in range(2):
        box.open(b"", TASK)
    assert box.put_aside(DEVICE) is None
    box.open(b"", TASK)
    aside = box.put_aside(DEVICE)
    assert aside == LeftOut(DEVICE, "put aside after 3 refused replies in a row")
    assert "put aside" in reason(box.open(GOOD, TASK).message)
    assert box.put_aside(replace(DEVICE, id=4)) is None


def test_a_good_reply_ends_the_row():
    box = inbox()
    for round_num in range(1, 6):
        task = replace(TASK, round_num=round_num)
        for _ in range(2):
            box.open(b"", task)
        good = CODEC.encode_reply(update(), Stamp("run-1", round_num))
        assert isinstance(box.open(good, task).message, ClientUpdate)
    assert box.put_aside(DEVICE) is None
    assert box.ledger.refused == {3: 10}


def test_a_device_that_says_why_it_stays_out_gets_no_strike():
    box = inbox()
    data = CODEC.encode_reply(LeftOut(DEVICE, "the battery is empty"), STAMP)
    for _ in range(4):
        assert reason(box.open(data, TASK).message) == "the battery is empty"
    assert box.ledger == Ledger()
    box.open(b"", TASK)
    box.open(data, TASK)
    assert box.ledger.strikes == {3: 1}


def test_the_number_of_strikes_can_be_set():
    box = inbox(settings=GuardSettings(strikes=1))
    box.open(b"", TASK)
    assert box.put_aside(DEVICE) is not None


def test_distrust_outlives_the_server():
    box = inbox()
    box.open(GOOD, TASK)
    for _ in range(3):
        box.open(b"", TASK)
    again = inbox(ledger=Ledger.from_json(box.ledger.to_json()))
    assert again.put_aside(DEVICE) is not None
    assert again.ledger.refused == {3: 3}


def test_a_resumed_server_asks_the_same_round_again():
    box = inbox()
    box.open(GOOD, TASK)
    again = inbox(ledger=Ledger.from_json(box.ledger.to_json()))
    assert isinstance(again.open(GOOD, TASK).message, ClientUpdate)


def test_updates_are_cut_back_on_the_way():
    box = inbox(settings=GuardSettings(clip=0.001))
    received = box.open(GOOD, TASK)
    assert isinstance(received.message, ClientUpdate)
    sent = update().model.weights["conv1.weight"]
    assert not torch.equal(received.message.model.weights["conv1.weight"], sent)


@given(st.lists(st.booleans(), max_size=12))
@settings(max_examples=30, deadline=None)
def test_whatever_comes_the_ledger_adds_up(replies):
    box = inbox()
    row = refused = 0
    for round_num, honest in enumerate(replies, 1):
        task = replace(TASK, round_num=round_num)
        good = CODEC.encode_reply(update(), Stamp("run-1", round_num))
        reply = box.open(good if honest else b"", task).message
        believed = honest and row < 3
        assert isinstance(reply, ClientUpdate) == believed
        row, refused = (0, refused) if believed else (row + 1, refused + 1)
    assert box.ledger.refused.get(3, 0) == refused
    assert (box.put_aside(DEVICE) is not None) == (row >= 3)


# --- whole rounds over the wire ---


@dataclass
class Wired:
    """A runner whose clients hear and say everything as bytes."""

    inside: Runner
    codec: Codec
    shared: Callable[[Assignment], State]
    box: Inbox

    @property
    def memories(self) -> MutableMapping[int, State]:
        return self.inside.memories

    @memories.setter
    def memories(self, value: MutableMapping[int, State]) -> None:
        self.inside.memories = value

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        for task in assignments:
            self.box.shared = self.shared(task)
            received = self.codec.decode_task(next(parcels(self.codec, [task], "run-1")))
            heard = check_task(received.message, task.device, task.round_num - 1, GuardSettings())
            assert isinstance(heard, Assignment)
            said = next(iter(self.inside.train([heard])))
            reply = self.box.open(self.codec.encode_reply(said, received.stamp), task).message
            assert isinstance(reply, ClientUpdate)
            yield reply

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        for task in tasks:
            received = self.codec.decode_task(next(parcels(self.codec, [task], "run-1")))
            assert isinstance(received.message, StatisticsTask)
            said = next(iter(self.inside.statistics([received.message])))
            reply = self.box.open(self.codec.encode_reply(said, received.stamp), task).message
            assert isinstance(reply, Moments)
            yield reply

    def looking_through(self, net: nn.Module) -> Callable[[Tensor], Tensor]:
        return self.inside.looking_through(net)


def wired(simulator: Simulator) -> Simulator:
    codec = Codec.of(simulator.net, simulator.graph)
    trade = Trade(simulator.method, simulator.net, simulator.train)
    batch = Batch(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64))

    def shared(task: Assignment) -> State:
        return expected_shared(trade, task, batch)

    simulator.runner = Wired(simulator.runner, codec, shared, Inbox(codec, "run-1"))
    return simulator


@pytest.mark.parametrize("name", methods.names())
def test_every_method_learns_the_same_over_the_wire(name):
    (*_, here), (*_, there) = world(name).rounds(), wired(world(name)).rounds()
    assert not there.left_out
    assert there.costs == here.costs
    assert_same(there.snapshot.server.weights, here.snapshot.server.weights)
    assert_same(there.snapshot.server.extra, here.snapshot.server.extra)


@pytest.mark.parametrize("count", [19, 21, 5_000_000])
def test_a_number_of_samples_that_the_server_knows_is_not_a_matter_of_claims(count):
    data = CODEC.encode_reply(update(num_samples=count), STAMP)
    measured = CODEC.encode_reply(moments(num_samples=count), STAMP)
    box = inbox(known_samples=True)
    expected = f"refused: {count} samples are claimed, the device has 20"
    assert reason(box.open(data, TASK).message) == expected
    assert reason(box.open(measured, ASKED).message) == expected
    assert isinstance(box.open(GOOD, TASK).message, ClientUpdate)
    assert isinstance(inbox().open(data, TASK).message, ClientUpdate)  # a folder may have grown


@pytest.mark.parametrize("name", ["max_abs_error", "relative_error"])
@pytest.mark.parametrize("value", [nan, inf, -0.1])
def test_a_rounding_that_cannot_be_is_refused(name, value):
    facts, tensors = opened(Codec(CODEC.cargo, fp16=True).encode_reply(update(), STAMP))
    assert isinstance(inbox().open(closed(facts, tensors), TASK).message, ClientUpdate)
    claimed = closed(facts | {name: value}, tensors)
    assert "a rounding of" in reason(inbox().open(claimed, TASK).message)
