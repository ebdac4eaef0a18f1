"""Messages out and replies in: one at a time, until a deadline of our own."""

import pytest
from flwr.app import Message, RecordDict
from tests.flower.village import Node, Village, crashed

from dapperfl.errors import MessageError
from dapperfl.flower.letters import letter, opened, part
from dapperfl.flower.post import GRACE, Came, Post, Silence


def echo(node: Node, message: Message, reply: Message) -> Message:
    """Answer with the settings' own text."""
    text = str(node.settings["text"])
    if text == "crash":
        return crashed(message, "it fell over")
    if text == "broken":
        raise ValueError("no such object")
    return Message(letter({"text": part(text.encode())}), reply_to=message)


def sent(*texts: str) -> tuple[Post, Village, dict[str, str]]:
    """Send a message to each of these nodes; one called "mute" never answers."""
    village = Village([Node({"text": text}, twist=echo) for text in texts])
    post = Post(village, village.clock.now, village.clock.sleep)
    waiting = {}
    for node in village.nodes.values():
        if node.settings["text"] == "mute":
            node.twist = lambda node, message, reply: None
        key = post.send(node.number, "query", letter({}), ttl=9)
        assert key is not None
        waiting[key] = str(node.settings["text"])
    return post, village, waiting


def text(came: Came[str]) -> str:
    assert isinstance(came.content, RecordDict)
    return opened(came.content, {"text": 99})["text"].decode()


def test_each_reply_comes_with_what_was_remembered_of_its_message():
    post, village, waiting = sent("a", "b", "c")
    village.order = lambda keys: keys[::-1]
    found = [(came.about, text(came)) for came in post.collect(waiting, 9)]
    assert found == [("c", "c"), ("b", "b"), ("a", "a")]
    assert not waiting


def test_who_is_silent_is_waited_for_until_the_deadline_and_no_longer():
    post, village, waiting = sent("mute", "b")
    found = {came.about: came.content for came in post.collect(waiting, 9)}
    assert found["mute"] == Silence("no reply within 9 s")
    assert village.clock.at == 9


def test_a_reply_that_comes_too_late_is_fetched_so_that_flower_lets_go_of_it():
    post, village, waiting = sent("mute", "b")
    (late,) = (key for key, about in waiting.items() if about == "mute")
    list(post.collect(waiting, 9))
    reply = Message(letter({"text": part(b"late")}), reply_to=village.pushed[0])
    village.replies[late] = reply
    key = post.send(102, "query", letter({}), ttl=9)
    assert key is not None
    (came,) = post.collect({key: "b"}, 9)
    assert text(came) == "b"
    assert village.replies == {}


def test_late_replies_are_not_looked_for_for_ever(monkeypatch):
    post, village, waiting = sent("mute", "b")
    list(post.collect(waiting, 9))
    village.clock.at += GRACE
    key = post.send(102, "query", letter({}), ttl=9)
    assert key is not None
    looked: list[str] = []
    pull = village.pull_messages

    def look(keys: list[str]) -> list[Message]:
        looked.extend(keys)
        return pull(keys)

    monkeypatch.setattr(village, "pull_messages", look)
    list(post.collect({key: "b"}, 9))
    assert looked == [key]


def test_an_error_of_flower_is_a_silence_with_its_reason():
    post, _, waiting = sent("crash")
    (came,) = post.collect(waiting, 9)
    assert came.content == Silence("no reply: it fell over")


def test_what_cannot_be_opened_is_a_bad_message_as_long_as_flower_is_there(monkeypatch):
    post, village, waiting = sent("broken", "b")
    found = {came.about: came.content for came in post.collect(waiting, 9)}
    assert isinstance(found["broken"], MessageError)
    assert isinstance(found["b"], RecordDict)
    post, village, waiting = sent("broken")

    def gone() -> list[int]:
        raise ConnectionError("no SuperLink")

    monkeypatch.setattr(village, "get_node_ids", gone)
    with pytest.raises(ConnectionError, match="no SuperLink"):
        list(post.collect(waiting, 9))


def test_a_message_that_flower_does_not_take_is_told(monkeypatch):
    post, village, _ = sent("a")
    monkeypatch.setattr(village, "push_messages", lambda messages: [])
    assert post.send(101, "query", letter({}), ttl=9) is None


def test_messages_to_nodes_that_have_just_gone_are_not_sent(monkeypatch):
    post, village, _ = sent("a", "b")
    monkeypatch.setattr(village, "push_messages", lambda messages: [""])  # what a SuperLink says
    assert [post.send(node, "query", letter({}), ttl=9) for node in (101, 102)] == [None, None]
