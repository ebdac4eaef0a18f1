"""Copying states, and finding the memory that their tensors share."""

import torch

from dapperfl.core.state import blocks_of, num_bytes, overwrite


def test_tensors_of_any_memory_format_are_overwritten():
    given = {"a": torch.arange(24.0).view(1, 2, 3, 4), "b": torch.arange(3.0), "c": torch.ones(2)}
    into = {
        "a": torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "b": torch.zeros(3),
        "d": torch.full((2,), 7.0),
    }
    overwrite(into, given)
    assert torch.equal(into["a"], given["a"])
    assert torch.equal(into["b"], given["b"])
    assert into["d"].tolist() == [7, 7]  # nobody gave it


def test_bytes_are_those_of_all_entries():
    state = {"a": torch.zeros(2, 3), "b": torch.zeros((), dtype=torch.int64)}
    assert num_bytes(state) == 6 * 4 + 8


def test_a_block_is_found_once_whatever_lies_in_it():
    block, alone = torch.zeros(6), torch.zeros(2)
    found = blocks_of([block[:2], alone, block[2:].view(2, 2)])
    assert [id(each) for each in found] == [id(block), id(alone)]
