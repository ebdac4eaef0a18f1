"""Who is asked who it is, how often, and who is waited for meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from tests.flower.village import (
    Node,
    Twist,
    Village,
    assembled,
    crashed,
    nodes_of,
    toy,
    training_replies,
)

from dapperfl.flower.desk import Desk
from dapperfl.flower.joining import _readable
from dapperfl.flower.keyring import Keyring
from dapperfl.flower.letters import refusal
from dapperfl.flower.place import Place
from dapperfl.flower.roster import AGAIN, HELLO
from dapperfl.flower.runner import FlowerRunner


def at_first(lost: Callable[[Message], Message | None]) -> Twist:
    """Return what becomes of a device's replies if the first one meets with something."""
    seen: list[Message] = []

    def twist(node: Node, message: Message, reply: Message) -> Message | None:
        seen.append(message)
        return lost(message) if len(seen) == 1 else reply

    return twist


def mute(node: Node, message: Message, reply: Message) -> Message | None:
    return None


@pytest.mark.parametrize(
    "lost", [lambda message: None, lambda message: crashed(message, "out of memory")]
)
def test_a_device_whose_first_words_are_lost_is_asked_again(tmp_path, caplog, lost: Any):
    config = toy("deploy.deadline=600")
    nodes = nodes_of(config, tmp_path)
    nodes[1].twist = at_first(lost)
    village = Village(nodes)
    (*_, record) = assembled(village, config, tmp_path / "run").rounds()
    assert record.left_out == ()
    assert AGAIN <= village.clock.at < AGAIN + 5
    assert "refused" not in caplog.text


def test_a_device_that_takes_longer_than_a_round_to_say_who_it_is_joins(tmp_path):
    config = toy("deploy.deadline=5")
    nodes = nodes_of(config, tmp_path)
    slow: list[Message] = []
    nodes[1].twist = lambda node, message, reply: slow.append(reply)
    village = Village(nodes)

    def answer() -> None:
        if village.clock.at >= 30 and slow:
            reply, nodes[1].twist = slow.pop(), None
            village.replies[reply.metadata.reply_to_message_id] = reply

    village.before_pull = answer
    for record in assembled(village, config, tmp_path / "run").rounds():
        assert record.left_out == ()
    assert 30 <= village.clock.at < 35


def test_a_device_that_comes_back_is_asked_at_once(tmp_path):
    config = toy("deploy.deadline=600")
    nodes = nodes_of(config, tmp_path)
    nodes[1].twist = at_first(lambda message: None)
    village = Village(nodes)
    number = nodes[1].number

    def restart() -> None:  # seen from here: away for a moment, then back under the same number
        if 5 <= village.clock.at < 6:
            village.nodes.pop(number, None)
        elif village.clock.at >= 6:
            village.nodes[number] = nodes[1]

    village.before_pull = restart
    assembled(village, config, tmp_path / "run")
    assert village.clock.at < 10


def test_one_whose_number_is_free_again_is_asked_at_once(tmp_path, caplog):
    config = toy("deploy.deadline=600", "rounds=2")
    nodes = nodes_of(config, tmp_path)
    village = Village([*nodes, Node(nodes[0].settings)])  # it has come back, and Flower counts both
    simulator = assembled(village, config, tmp_path / "run")
    rounds = simulator.rounds()
    assert next(rounds).left_out == ()
    assert "a device is refused: device 0 has joined already" in caplog.messages
    village.nodes.pop(nodes[0].number)
    assert next(rounds).left_out == ()
    assert village.clock.at < 5


def told(node: Node) -> list[str]:
    """Return what `dapperfl join` shows of what a device was told."""
    text = (Path(str(node.settings["state"])) / "worked.jsonl").read_text()
    return [line for row in text.splitlines() for line in _readable(row)]


def test_a_device_that_is_refused_is_told_why(tmp_path):
    config = toy("rounds=1")
    nodes = nodes_of(config, tmp_path)
    stranger = Node({**nodes[0].settings, "state": str(tmp_path / "stranger"), "device-id": 7})
    late = Node({**nodes[0].settings, "state": str(tmp_path / "late")})
    weak = Node({**nodes[1].settings, "state": str(tmp_path / "weak"), "rho": 0.3})
    simulator = assembled(Village([weak, *nodes, stranger, late]), config, tmp_path / "run")
    (record,) = simulator.rounds()
    assert record.left_out == ()
    again = "when that is solved, stop this and join again"
    assert told(weak) == [
        f"the server refuses this device: device 1 says rho = 0.3, expected 0.5; {again}"
    ]
    assert told(stranger) == [f"cannot take part: the run has no device 7; {again}"]
    assert told(late) == [
        "the server refuses this device: device 0 has joined already; it is asked when that one "
        "has left"
    ]


def test_a_refused_device_that_was_started_anew_is_asked_though_nobody_saw_it_leave(
    tmp_path, caplog
):
    config = toy("deploy.deadline=600", "deploy.devices=2", "rounds=4")
    nodes = nodes_of(config, tmp_path)
    nodes[2].settings["rho"] = 0.3  # a mistake
    simulator = assembled(village := Village(nodes), config, tmp_path / "run")
    rounds = simulator.rounds()
    assert [out.device.id for out in next(rounds).left_out] == [2]
    del nodes[2].settings["rho"]
    village.clock.at += AGAIN + 1
    next(rounds)
    assert next(rounds).left_out == ()
    assert [each for each in caplog.messages if "refused" in each] == [
        "a device is refused: device 2 says rho = 0.3, expected 0.4"
    ]
    assert len([line for line in told(nodes[2]) if "refuses this device" in line]) == 1


def test_one_that_joins_again_with_another_number_is_asked_though_nobody_saw_it_leave(
    tmp_path, caplog
):
    config = toy("deploy.deadline=600", "deploy.devices=2", "rounds=4")
    nodes = nodes_of(config, tmp_path)[:2]
    nodes[1].settings["device-id"] = 2  # a mistake
    village = Village(nodes)
    rounds = assembled(village, config, tmp_path / "run").rounds()
    assert [out.device.id for out in next(rounds).left_out] == [1]
    nodes[1].settings["device-id"] = 1
    lost = {out.device.id: out.reason for out in next(rounds).left_out}
    assert lost.keys() == {1, 2}
    assert "this is Device(id=1" in lost[2]
    later = [next(rounds), next(rounds)]
    assert [[out.device.id for out in record.left_out] for record in later] == [[2], [2]]
    assert [out.reason for out in later[-1].left_out] == ["the device is not connected"]
    assert village.clock.at < AGAIN  # and nobody waited for it
    assert "refused" not in caplog.text


def test_a_device_that_cannot_work_stays_who_it_is(tmp_path, monkeypatch):
    config = toy("deploy.devices=2", "rounds=3")
    nodes = nodes_of(config, tmp_path)[:2]

    def broken(node: Node, message: Message, reply: Message) -> Message:
        train = message.metadata.message_type == "train"
        return Message(refusal("no room"), reply_to=message) if train else reply

    nodes[1].twist = broken
    village = Village(nodes)
    for record in assembled(village, config, tmp_path / "run").rounds():
        assert [out.reason for out in record.left_out] == ["no room", "the device is not connected"]
    assert village.clock.at < AGAIN


def test_a_device_that_stays_refused_is_neither_counted_nor_told_again(tmp_path, caplog):
    config = toy("deploy.deadline=600", "deploy.devices=2", "rounds=4")
    nodes = nodes_of(config, tmp_path)
    nodes[2].settings["rho"] = 0.3
    simulator = assembled(village := Village(nodes), config, tmp_path / "run")
    for _ in simulator.rounds():
        village.clock.at += AGAIN + 1
    assert len([each for each in caplog.messages if "refused" in each]) == 1
    assert len([line for line in told(nodes[2]) if "refuses this device" in line]) == 1
    assert isinstance(simulator.runner, FlowerRunner)
    assert simulator.runner.roster.refused == 1


def test_a_device_that_was_put_aside_is_told_so_once(tmp_path):
    config = toy("rounds=4", "deploy.guard.strikes=1")
    nodes = nodes_of(config, tmp_path)
    nodes[1].twist = training_replies(lambda node, data: b"noise")
    for _ in assembled(Village(nodes), config, tmp_path / "run").rounds():
        pass
    assert [line for line in told(nodes[1]) if "server" in line] == [
        "the server refuses this device: put aside after 1 refused replies in a row; this run asks "
        "it no more"
    ]


def test_a_device_that_is_none_is_named_by_its_key(tmp_path, caplog):
    config = toy("deploy.devices=2", "rounds=1")
    nodes = nodes_of(config, tmp_path)
    nodes[1].settings["device-id"] = 9
    village, desk = Village(nodes), Desk(Place(tmp_path / "run"))
    keys = {number: f"{number}".encode() for number in village.nodes}
    desk.write_keys(Keyring.of(keys, {"device-1": keys[nodes[1].number]}))
    assembled(village, config, tmp_path / "run")
    (line,) = (each for each in caplog.messages if "refused" in each)
    assert line.startswith("a device with the key of device 1 is refused: it says: the run has no")


def test_no_other_key_speaks_under_the_number_of_a_device(tmp_path, caplog):
    config = toy("deploy.devices=2", "rounds=3")
    nodes = nodes_of(config, tmp_path)
    thief = Node({**nodes[2].settings, "state": str(tmp_path / "thief"), "rho": 0.1})
    village, desk = Village([thief, *nodes]), Desk(Place(tmp_path / "run"))
    keys = {number: f"{number}".encode() for number in village.nodes}
    files = {"device-2": keys[nodes[2].number]}
    desk.write_keys(Keyring.of(keys, files))
    rounds = assembled(village, config, tmp_path / "run").rounds()
    assert next(rounds).left_out == ()
    (line,) = told(thief)
    assert line.startswith("the server refuses this device: device 2 belongs to another key; give")
    # No file is named after this one; it has joined with that number first.
    village.nodes.pop(nodes[0].number)
    thief.settings["device-id"] = 0
    village.clock.at += AGAIN + 1
    assert [out.device.id for out in next(rounds).left_out] == [0]
    assert [out.device.id for out in next(rounds).left_out] == [0]
    assert "device 0 belongs to another key" in caplog.text
    assert desk.read_keyring().claims.keys() == {
        desk.read_keyring().nodes[each.number] for each in nodes
    }


def test_one_that_never_says_who_it_is_holds_nobody_up_for_long(tmp_path, caplog):
    config = toy("deploy.deadline=600", "deploy.devices=2", "rounds=4")
    nodes = nodes_of(config, tmp_path)[:2]  # the third is missing, and might be this one
    village = Village([*nodes, Node({**nodes[0].settings, "device-id": 2}, twist=mute)])
    simulator = assembled(village, config, tmp_path / "run")
    for record in simulator.rounds():
        assert [out.reason for out in record.left_out] == ["the device is not connected"]
        village.clock.at += 500  # devices take their time
    assert village.clock.at < 4 * 500 + AGAIN + 5
    asked = [each for each in village.pushed if each.metadata.message_type == HELLO]
    assert len(asked) == 2 + 5  # twice, and then once a round
    assert [each for each in caplog.messages if "said who it is" in each] == [
        f"a device has not said who it is (no reply within {AGAIN:.0f} s); it is asked again"
    ]
    assert isinstance(simulator.runner, FlowerRunner)
    assert simulator.runner.roster.refused == 0
