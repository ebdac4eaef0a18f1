"""Bytes in Flower's messages: what is not ours is refused before it is looked into."""

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict

from dapperfl.errors import MessageError
from dapperfl.flower.letters import letter, opened, part, refusal, refused, trouble


def test_parts_come_out_as_they_went_in():
    content = letter({"a": part(b"one"), "b": part(b"")})
    assert opened(content, {"a": 3, "b": 0}) == {"a": b"one", "b": b""}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (RecordDict(), "none of dapperfl's"),
        (RecordDict({"dapperfl": ConfigRecord({"a": b"x"})}), "none of dapperfl's"),
        (RecordDict({"other": ArrayRecord()}), "none of dapperfl's"),
        (letter({}), "0 parts, expected a"),
        (letter({"b": part(b"")}), "1 parts, expected a"),
        (letter({"a": part(b""), "b": part(b"")}), "2 parts, expected a"),
        (letter({"a": part(b"four")}), "4 bytes, expected at most 3"),
        (letter({"a": Array("uint8", (1,), "numpy.ndarray", b"x")}), "no plain bytes"),
    ],
)
def test_anything_else_is_refused(content, words):
    with pytest.raises(MessageError, match=words):
        opened(content, {"a": 3})


def test_a_refusal_is_one_printable_line():
    assert refused(refusal("no\npower \x1b[31m")) == "no power  [31m"
    assert refused(refusal(" \n")) == "the device does not say why"
    assert refused(letter({"reply": part(b"x")})) is None
    assert refused(RecordDict()) is None


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x" * 2000])
def test_a_refusal_that_is_no_text_is_refused(data):
    with pytest.raises(MessageError):
        refused(letter({"refused": part(data)}))


def test_what_flower_reports_is_told_in_one_line():
    assert trouble(Error(5, "Node\nUnavailable ")) == "no reply: Node Unavailable"
    assert trouble(Error(8)) == "no reply: code 8"
