"""Who is asked who it is, how often, and who is waited for meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message
from tests.flower.village import Node, Village, assembled, crashed, nodes_of, toy

from dapperfl.flower.roster import AGAIN, HELLO
from dapperfl.flower.runner import FlowerRunner

Twist = Callable[[Node, Message, Message], Message | None]


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
