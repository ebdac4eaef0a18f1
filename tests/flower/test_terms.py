"""What devices are told of a run, and what they do not take from a stranger."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flower.village import toy

from dapperfl.errors import ConfigError, MessageError
from dapperfl.flower.kit import NET_LIMIT, build_kit
from dapperfl.flower.terms import Terms, read_terms, terms_of
from dapperfl.lab.config import to_toml
from dapperfl.lab.world import known_world

CONFIG = toy("data.root=/srv/private")
TERMS = terms_of(CONFIG, known_world(toy()), "run-1")
TRUSTED = ("tests.lab.toy_world",)


def test_they_come_back_as_they_went():
    assert read_terms(TERMS.encode()) == TERMS
    config = TERMS.read_config(TRUSTED)
    assert config == toy()  # all but where the server's data lies
    assert b"private" not in TERMS.encode()


def test_one_mean_for_all_channels_is_told_for_each():
    world = replace(known_world(toy()), mean=(0.4,), std=(0.25,))
    terms = terms_of(CONFIG, world, "run-1")
    assert (terms.mean, terms.std) == ((0.4,) * 3, (0.25,) * 3)
    assert read_terms(terms.encode()) == terms


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ((), 'no device would take this run: the "classes"'),
        ((1, 2), 'no device would take this run: the "classes"'),
        (tuple(f"{'x' * 60} {n}" for n in range(20_000)), "shorter names"),
    ],
)
def test_what_no_device_would_take_is_refused_by_the_server(classes, words):
    world = replace(known_world(toy()), classes=classes)
    with pytest.raises(ConfigError, match=words):
        terms_of(CONFIG, world, "run-1")


def changed(**facts) -> bytes:
    return json.dumps(json.loads(TERMS.encode()) | facts).encode()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"schema": 2}, "schema 2, this version of dapperfl reads 1"),
        ({"run": "../../etc"}, '"run"'),
        ({"run": ""}, '"run"'),
        ({"run": 3}, '"run"'),
        ({"config": 3}, '"config"'),
        ({"classes": []}, '"classes"'),
        ({"classes": [1, 2]}, '"classes"'),
        ({"picture": [3, 8]}, '"picture"'),
        ({"picture": [3, 0, 8]}, '"picture"'),
        ({"picture": [3, 8, 10**6]}, "too large"),
        ({"picture": [4096, 4096, 4096]}, "68719476736 numbers are too large"),
        ({"picture": "388"}, '"picture"'),
        ({"mean": [0.1]}, '"mean"'),
        ({"std": [0.1, 0.0, 0.1]}, '"std"'),
        ({"flip": 1}, '"flip"'),
        ({"pad": -1}, '"pad"'),
        ({"more": 1}, "cannot be read"),
    ],
)
def test_other_terms_are_refused(facts, words):
    with pytest.raises(MessageError, match=words):
        read_terms(changed(**facts))


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_noise_is_refused(data):
    with pytest.raises(MessageError):
        read_terms(data)


@given(
    st.sampled_from(sorted(json.loads(TERMS.encode()))),
    st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text()),
)
def test_any_other_value_is_refused_or_harmless(name, value):
    try:
        found = read_terms(changed(**{name: value}))
    except MessageError:
        return
    told = getattr(found, name) if name != "schema" else 1
    assert told == (tuple(value) if isinstance(value, list) else value)
    assert isinstance(hash(found), int)  # what is built from it is kept by it


@pytest.mark.parametrize(
    "key",
    ['[method]\nname = "os:system"', '[net]\nname = "os:system"', '[data]\nbenchmark = "x:y"'],
)
def test_code_from_outside_is_not_loaded_unless_the_owner_agrees(key):
    terms = replace(TERMS, config=key)
    words = "code from outside dapperfl; a device that agrees joins with --modules"
    with pytest.raises(MessageError, match=words):
        terms.read_config(("tests",))


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 0", "round = 3", "method = 3"])
def test_a_config_that_is_none_is_refused(text):
    with pytest.raises(MessageError, match="the config of the run cannot be used"):
        replace(TERMS, config=text).read_config()


def test_a_net_that_is_too_large_is_not_built():
    config = to_toml(toy("net=resnet10", "net.width=100000"))
    terms = Terms(**{**vars(TERMS), "config": config})
    with pytest.raises(MessageError, match=f"at most {NET_LIMIT} are believed"):
        build_kit(terms, TRUSTED)
