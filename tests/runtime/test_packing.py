import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from dapperfl.errors import MessageError
from dapperfl.runtime.packing import Entry, join, pack, pack_bits, split, unpack, unpack_bits

SHAPES = {"a": (2, 2), "count": (), "b": (3,), "none": (0, 4)}
DTYPES = {
    "a": torch.float32,
    "count": torch.int64,
    "b": torch.float32,
    "none": torch.float32,
}
STATE = {
    "a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "count": torch.tensor(9),
    "b": torch.tensor([5.0, 6.0, 7.0]),
    "none": torch.empty(0, 4),
}


def entry(tensor: torch.Tensor) -> Entry:
    return Entry(tensor.dtype, tuple(tensor.shape), bytearray(tensor.numpy().tobytes()))


@given(st.lists(st.booleans(), max_size=40))
def test_bits_come_back(flags):
    packed = pack_bits(torch.tensor(flags, dtype=torch.bool))
    assert len(packed) == (len(flags) + 7) // 8
    assert unpack_bits(entry(packed), len(flags)).tolist() == flags


def test_the_first_bit_is_the_lowest():
    flags = torch.tensor([True, False, True, False, False, False, False, False, False, True])
    assert pack_bits(flags).tolist() == [0b101, 0b10]


def test_a_bit_beyond_the_last_is_refused():
    packed = torch.tensor([0b100000], dtype=torch.uint8)
    assert unpack_bits(entry(packed), 6).tolist() == [False] * 5 + [True]
    with pytest.raises(MessageError, match="beyond the last, 4, is kept"):
        unpack_bits(entry(packed), 5)


def test_tensors_of_one_format_lie_end_to_end():
    joined = join(STATE, SHAPES, DTYPES)
    assert joined["float32"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert joined["int64"].tolist() == [9]
    entries = {name: entry(tensor) for name, tensor in joined.items()}
    back = split(entries, SHAPES, DTYPES)
    assert not entries
    assert list(back) == list(STATE)
    for name, tensor in STATE.items():
        assert torch.equal(back[name], tensor)
        assert back[name].dtype == tensor.dtype


def test_each_tensor_owns_its_memory():
    entries = {name: entry(tensor) for name, tensor in join(STATE, SHAPES, DTYPES).items()}
    back = split(entries, SHAPES, DTYPES)
    back["a"].zero_()
    assert back["b"].tolist() == [5, 6, 7]
    assert back["a"].untyped_storage().nbytes() == 16


def test_a_blob_is_a_safetensors_file():
    blob = pack({"kind": "try"}, {"x": torch.arange(3)})
    assert load(blob)["x"].tolist() == [0, 1, 2]
    facts, entries = unpack(blob, 24)
    assert facts.text("kind") == "try"
    assert entries["x"].tensor().tolist() == [0, 1, 2]


def test_a_blob_without_facts_is_refused():
    blob = pack({}, {}).replace(b"facts", b"tacts")
    with pytest.raises(MessageError, match="no facts"):
        unpack(blob, 100)
