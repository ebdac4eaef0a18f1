"""Settings that came later: each exists, and its value there is a good one."""

import pytest

from dapperfl import methods
from dapperfl.lab.config import to_keys
from dapperfl.lab.resolve import resolve
from dapperfl.lab.younger import without


@pytest.mark.parametrize("name", methods.names())
def test_what_a_method_was_without_can_be_set_and_is_off(name):
    known = to_keys(resolve(None, [f"method={name}"]))
    old = {key: value for key, value in without(name).items() if key in known}
    texts = [f"{key}={str(value).lower()}" for key, value in old.items()]
    config = resolve(None, [f"method={name}", *texts])
    assert old.items() <= to_keys(config).items()
    assert not any(config.method.build().measures(number) for number in (1, 100)) or (
        name in ("heterofl", "fedrolex")  # which always did
    )


def test_every_key_is_one_of_some_method():
    known = {key for name in methods.names() for key in to_keys(resolve(None, [f"method={name}"]))}
    assert {key for name in methods.names() for key in without(name)} <= known
