"""Laid end to end or tensor by tensor: the same numbers."""

import pytest
import torch
from tests.core.zoo_cuts import ZOO, build, draw, graph_of
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.aggregation import CoverageMean, RecoveredMean, WeightedSums
from dapperfl.core.flat import cut_up, end_to_end
from dapperfl.core.messages import LocalModel
from dapperfl.core.rng import generator
from dapperfl.core.scores import random_scores
from dapperfl.core.state import State
from dapperfl.errors import MessageError

every_net = pytest.mark.parametrize("cls", ZOO, ids=[cls.__name__ for cls in ZOO])


def assert_equal(ours: State, theirs: State) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


@every_net
def test_a_flat_cut_is_the_plain_cut(cls):
    state = build(cls).state_dict()
    submodel = draw(graph_of(cls), 3)
    assert_equal(submodel.slice(state, flat=True), submodel.slice(state, flat=False))
    parameters = {name: state[name] for name in graph_of(cls).parameters}  # such as momentum
    assert_equal(submodel.slice(parameters, flat=True), submodel.slice(parameters, flat=False))


@every_net
@pytest.mark.parametrize("kind", ["paper", "gated", "zero", "coverage"])
def test_a_flat_fold_is_the_plain_fold(cls, kind):
    net, graph = build(cls), graph_of(cls)
    reference = net.state_dict()

    def folded(flat: bool) -> State:
        mean: WeightedSums
        if kind == "coverage":
            mean = CoverageMean(reference, flat=flat)
        else:
            mean = RecoveredMean(reference, kind, flat=flat)
        for index in range(3):
            submodel = draw(graph, index) if index != 1 else graph.full()
            weights = {
                name: t * (index + 2) if t.is_floating_point() else t
                for name, t in submodel.slice(reference).items()
            }
            mean.add(LocalModel(weights, submodel), 10.0 + index)
        assert mean.flat is flat
        return mean.result()

    ours, theirs = folded(True), folded(False)
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():  # a multiplication may be fused with its addition, or not
        assert torch.allclose(tensor, theirs[name], rtol=1e-15, atol=1e-15), name


def test_weights_in_another_memory_format_are_cut_alike():
    state = {n: t.clone() for n, t in tiny_net().state_dict().items()}
    turned = {
        n: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for n, t in state.items()
    }
    submodel = random_scores(tiny_graph(), generator(1)).top(0.5, multiple=1)
    assert_equal(submodel.slice(turned, flat=True), submodel.slice(state, flat=False))


def test_a_tensor_of_another_shape_is_refused():
    state = dict(tiny_net().state_dict())
    name = next(iter(state))
    state[name] = state[name][:-1]
    submodel = random_scores(tiny_graph(), generator(1)).top(0.5, multiple=1)
    with pytest.raises(MessageError, match=name):
        submodel.slice(state, flat=True)


def test_parts_of_a_vector_are_that_vector():
    vector = torch.arange(10.0)
    parts = cut_up(vector, ((2,), (2, 3), (), (1,)))
    assert [part.shape for part in parts] == [(2,), (2, 3), (), (1,)]
    assert end_to_end(parts) is vector
    counters = cut_up(vector, ((),) * 10)
    assert [float(each) for each in counters] == vector.tolist()
    assert end_to_end(counters) is vector


def test_anything_else_is_laid_end_to_end_in_its_order():
    vector = torch.arange(10.0)
    first, second, third = cut_up(vector, ((2,), (2, 3), (2,)))
    turned = second.view(3, 2).T  # the same memory, read down its columns
    assert end_to_end([second, first, third]).tolist() == [2, 3, 4, 5, 6, 7, 0, 1, 8, 9]
    assert end_to_end([first, turned, third]).tolist() == [0, 1, 2, 4, 6, 3, 5, 7, 8, 9]
    assert end_to_end([first, second]).tolist() == list(range(8))
    assert end_to_end([first, torch.ones(1), third]).tolist() == [0, 1, 1, 8, 9]
    assert end_to_end([torch.tensor(3), torch.tensor(4)]).tolist() == [3, 4]


def test_folding_parts_of_a_vector_reads_them_and_no_more():
    graph, reference = tiny_graph(), tiny_net().state_dict()
    cuts = [graph.full(), random_scores(graph, generator(2)).top(0.5, multiple=1)]
    laid = [cut.slice(tiny_net(index).state_dict(), flat=True) for index, cut in enumerate(cuts, 1)]
    apart = [{name: tensor.clone() for name, tensor in state.items()} for state in laid]
    results = []
    for states in (laid, apart):
        mean = RecoveredMean(reference, "gated", flat=True)
        for state, cut in zip(states, cuts, strict=True):
            mean.add(LocalModel(state, cut), 3.0)
        results.append(mean.result())
    assert_equal(*results)
    for state, before in zip(laid, apart, strict=True):
        assert_equal(state, before)
