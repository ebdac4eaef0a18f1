import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapperfl.core.messages import Device
from dapperfl.errors import MessageError
from dapperfl.runtime.facts import as_text, read_facts, write_facts


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(allow_nan=False), max_size=5))
def test_numbers_come_back_exactly(numbers):
    assert read_facts(write_facts({"all": numbers})).numbers("all") == numbers


def test_a_device_comes_back():
    facts = read_facts(b'{"d":{"id":1,"domain":"m\\u00fcnchen","rho":0.1,"num_samples":5}}')
    assert facts.device("d") == Device(1, "münchen", 0.1, 5)
    facts.end()


@pytest.mark.parametrize(
    "device", [{}, {"id": 1}, {"id": 1, "domain": "a", "rho": 0.1, "num_samples": 5, "more": 1}]
)
def test_half_a_device_or_more_than_one_is_refused(device):
    with pytest.raises(MessageError):
        read_facts(write_facts({"d": device})).device("d")


def test_a_fact_is_read_once():
    facts = read_facts(b'{"a":1}')
    assert facts.integer("a", 1, 1) == 1
    with pytest.raises(MessageError, match='does not say its "a"'):
        facts.integer("a")


def test_bounds_are_said():
    with pytest.raises(MessageError, match='"a" is 5, expected between 0 and 4'):
        read_facts(b'{"a":5}').integer("a", 0, 4)


def test_half_a_character_is_no_text():
    with pytest.raises(MessageError, match="one line"):
        read_facts(b'{"a":"\\ud800"}').text("a")


@given(st.text(max_size=400))
def test_any_text_can_be_made_fit(text):
    clean = as_text(text)
    assert read_facts(write_facts({"a": clean})).text("a") == clean
