"""Why a client is left out, in words that whoever wrote its method can use."""

import pytest
import torch

from dapperfl.core.messages import Device
from dapperfl.errors import RunError
from dapperfl.sim.reasons import left_out, told


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


def wrong_shapes() -> None:
    torch.ones(3) @ torch.ones(4)


def own_error() -> None:
    raise RunError("on purpose")


def reason(work) -> str:
    try:
        work()
    except Exception as error:
        return left_out(Device(0, "dark", 0.0, 1), error).reason
    return "none"


def test_an_error_in_somebodys_own_code_leads_to_its_line():
    line = wrong_shapes.__code__.co_firstlineno + 1
    assert reason(wrong_shapes).endswith(f" (test_reasons.py:{line} in wrong_shapes)")


def test_what_the_package_says_itself_needs_no_line():
    assert reason(own_error) == "on purpose"


def test_a_lack_of_memory_is_nobodys_reason():
    with pytest.raises(MemoryError):
        left_out(Device(0, "dark", 0.0, 1), MemoryError("no room"))
