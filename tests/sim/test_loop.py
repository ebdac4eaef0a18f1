"""Why a client is left out, in words that whoever wrote its method can use."""

import pytest

from dapperfl.errors import RunError
from dapperfl.sim.loop import told


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("bias"), "KeyError: 'bias'"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (ValueError("too few values\nper channel"), "too few values"),
        (AttributeError("bias"), "AttributeError: bias"),
        (RuntimeError("mat1 and mat2 shapes"), "mat1 and mat2 shapes"),
        (RunError("the loss is nan in epoch 1"), "the loss is nan in epoch 1"),
    ],
)  # fmt: skip
def test_an_error_is_told_in_a_line_with_its_kind_where_that_says_more(error, words):
    assert told(error) == words
