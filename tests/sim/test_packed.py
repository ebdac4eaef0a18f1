"""A block that is filled, copied and cut in one step holds what one tensor after another gives."""

import pytest
import torch
from tests.core.zoo_cuts import ZOO, build, draw, graph_of
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.state import State
from dapperfl.errors import RunError
from dapperfl.sim.packed import ALIGNED, Packed

every_net = pytest.mark.parametrize("cls", ZOO, ids=[cls.__name__ for cls in ZOO])
formats = pytest.mark.parametrize("turned", [False, True], ids=["rows", "channels_last"])


def numbered(state: State) -> State:
    """Give every entry a value of its own."""
    result, start = {}, 1
    for name, tensor in state.items():
        values = torch.arange(start, start + tensor.numel())
        result[name] = values.view(tensor.shape).to(tensor.dtype)
        start += tensor.numel()
    return result


def packed(state: State, turned: bool, flat: bool) -> Packed:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    return Packed(zeros, channels_last=turned, flat=flat)


def assert_equal(ours: State, theirs: State) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


@every_net
@formats
def test_what_is_loaded_is_in_the_views_and_in_the_copy(cls, turned):
    given = numbered(dict(build(cls).state_dict()))
    for flat in (True, False):
        block = packed(given, turned, flat)
        block.load(given)
        assert_equal(block.views, given)
        copied = block.copy()
        assert_equal(copied, given)
        block.zero()
        assert_equal(copied, given)  # it is a copy
        block.load(copied)  # of which all tensors lie in one vector
        assert_equal(block.views, given)
        assert all(tensor.is_contiguous() for tensor in copied.values())


@every_net
@formats
@pytest.mark.slow
def test_a_block_is_cut_as_a_state_is(cls, turned):
    graph = graph_of(cls)
    net = build(cls)
    state = {n: t for n, t in net.state_dict().items() if t.is_floating_point()}
    given, submodel = numbered(state), draw(graph, 3)
    wanted = submodel.slice(given, flat=False)
    whole, small = packed(given, turned, True), packed(wanted, turned, True)
    whole.load(given)
    small.cut_from(whole, submodel)
    assert_equal(small.views, wanted)


def test_tensors_begin_at_round_places_and_gaps_stay_finite():
    given = numbered(dict(tiny_net().state_dict()))
    block = packed(given, True, True)
    block.load(given)
    assert all(view.storage_offset() % ALIGNED == 0 for view in block.views.values())
    assert all(bool(each.memory.isfinite().all()) for each in block.blocks)


def test_a_state_of_another_type_is_converted():
    given = numbered(dict(tiny_net().state_dict()))
    double = {n: t.double() if t.is_floating_point() else t for n, t in given.items()}
    block = packed(given, False, True)
    block.load(double)
    assert_equal(block.views, given)


def test_a_state_of_another_shape_is_refused():
    given = numbered(dict(tiny_net().state_dict()))
    weight, bias = given["conv1.weight"], given["fc.bias"]
    given |= {"conv1.weight": weight[:-1], "fc.bias": torch.cat([bias, weight[-1].flatten()])}
    block = packed(dict(tiny_net().state_dict()), False, True)
    with pytest.raises(RunError):
        block.load(given)  # as long as it should be, all in all


def test_nothing_is_lost_where_nothing_is_cut():
    given = numbered({n: t for n, t in tiny_net().state_dict().items() if t.is_floating_point()})
    whole, same = packed(given, True, True), packed(given, True, True)
    whole.load(given)
    same.cut_from(whole, tiny_graph().full())
    assert_equal(same.views, given)
