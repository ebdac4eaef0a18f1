"""Which key may speak under which number."""

import pytest

from dapperfl.errors import MessageError
from dapperfl.flower.keyring import Keyring

ALICE, BOB, CAROL = 101, 102, 103  # nodes
KEYS = {ALICE: b"alice", BOB: b"bob", CAROL: b"carol"}
FILES = {"device-0": b"alice", "device-01": b"carol", "bob-5": b"bob", "carol": b"carol"}


@pytest.fixture
def keyring() -> Keyring:
    return Keyring.of(KEYS, FILES)


def refused(keyring: Keyring, number: int, node: int) -> bool:
    try:
        keyring.check(number, node)
    except MessageError:
        return True
    return False


def test_a_number_belongs_to_the_key_whose_file_has_its_name(keyring):
    with pytest.raises(MessageError, match=r"device 0 belongs to another key; .* device-0\.pub"):
        keyring.check(0, BOB)
    assert not refused(keyring, 0, ALICE)
    assert not any(refused(keyring, number, node) for number in (1, 5) for node in KEYS)


def test_any_other_number_belongs_to_the_first_that_joins_with_it(keyring):
    joined = keyring.claimed(5, CAROL)
    assert refused(joined, 5, BOB)
    assert not refused(joined, 5, CAROL)
    assert refused(joined.claimed(0, CAROL), 0, CAROL)  # a name counts for more


def test_a_key_that_takes_another_number_lets_go_of_its_first(keyring):
    assert not refused(keyring.claimed(5, CAROL).claimed(6, CAROL), 5, BOB)


def test_it_outlives_a_server_whose_nodes_have_new_numbers(keyring):
    joined = keyring.claimed(5, CAROL)
    later = Keyring.of({1: b"alice", 2: b"bob", 3: b"carol"}, FILES)
    back = Keyring.from_json(later.to_json())
    assert back == later
    assert refused(back.with_claims(joined.claims), 5, 2)
    assert not refused(back.with_claims(joined.claims), 5, 3)


def test_what_a_key_had_is_free_once_the_key_is_gone(keyring):
    joined = keyring.claimed(5, CAROL)
    later = Keyring.of({1: b"bob"}, {"bob": b"bob"})
    assert not refused(later.with_claims(joined.claims), 5, 1)


def test_a_key_says_whose_it_is_by_its_file_or_by_what_it_has_joined_as(keyring):
    assert keyring.number_of(ALICE) == 0
    assert keyring.number_of(BOB) is None
    assert keyring.claimed(5, BOB).number_of(BOB) == 5
    assert keyring.claimed(5, ALICE).number_of(ALICE) == 0


def test_without_keys_numbers_belong_to_nobody():
    nobody = Keyring()
    assert nobody.claimed(0, ALICE) == nobody
    assert not refused(nobody, 0, BOB)
    assert nobody.number_of(BOB) is None
