from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.aggregation import CoverageMean, RecoveredMean, Recovery
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import LocalModel
from dapperfl.core.rng import generator
from dapperfl.core.scores import random_scores
from dapperfl.core.state import State, num_bytes
from dapperfl.errors import MessageError

GATES = {"bn1.weight", "bn1.bias", "bn2.weight", "bn2.bias"}


def clients(graph: ChannelGraph, count: int, seed: int) -> list[tuple[LocalModel, float]]:
    """Random submodels with random values and weights."""
    made = []
    for index in range(count):
        rho = [0.0, 0.3, 0.6, 0.8][(index + seed) % 4]
        submodel = random_scores(graph, generator(seed, index)).top(rho, multiple=1)
        weights = submodel.slice(tiny_net(seed * 100 + index).state_dict())
        made.append((LocalModel(weights, submodel), float(10 * index + 7)))
    return made


def literal(reference: State, models: list[tuple[LocalModel, float]], recovery: str) -> State:
    """Eq. 6 and 7 as they are written: recover every model in full, then average."""
    total = sum(weight for _, weight in models)
    result = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in reference.items()}
    for model, weight in models:
        for name, tensor in reference.items():
            mask = model.submodel.mask({name: torch.ones_like(tensor, dtype=torch.float64)})[name]
            zeros = {name: torch.zeros_like(tensor, dtype=torch.float64)}
            own = model.submodel.scatter({name: model.weights[name].double()}, zeros)[name]
            fill = tensor.double()
            if recovery == "zero" or (recovery == "gated" and name in GATES):
                fill = torch.zeros_like(fill)
            result[name] += weight / total * (own * mask + fill * (1 - mask))
    return {
        name: r.to(reference[name].dtype)
        if reference[name].is_floating_point()
        else reference[name]
        for name, r in result.items()
    }


def assert_within_one_ulp(ours: State, theirs: State) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        other = theirs[name]
        if tensor.is_floating_point():
            step = torch.nextafter(other.abs(), torch.tensor(torch.inf)) - other.abs()
            assert bool(((tensor - other).abs() <= step).all()), name
        else:
            assert torch.equal(tensor, other), name


@pytest.mark.parametrize("recovery", get_args(Recovery))
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 5), seed=st.integers(0, 1000))
def test_streaming_is_the_literal_equation(recovery, count, seed):
    reference = tiny_net(9).state_dict()
    models = clients(tiny_graph(), count, seed)
    mean = RecoveredMean(reference, recovery)
    for model, weight in models:
        mean.add(model, weight)
    assert_within_one_ulp(mean.result(), literal(reference, models, recovery))


@pytest.mark.parametrize("make", [RecoveredMean, CoverageMean])
@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(5)), seed=st.integers(0, 100))
def test_the_order_of_clients_hardly_matters(make, order, seed):
    reference = tiny_net(9).state_dict()
    models = clients(tiny_graph(), 5, seed)
    first, second = make(reference), make(reference)
    for index in range(5):
        first.add(*models[index])
        second.add(*models[order[index]])
    assert_within_one_ulp(first.result(), second.result())


@pytest.mark.parametrize("seed", range(5))
def test_a_mean_lies_between_the_smallest_and_the_largest(seed):
    reference = tiny_net(9).state_dict()
    models = clients(tiny_graph(), 4, seed)
    mean = RecoveredMean(reference)
    for model, weight in models:
        mean.add(model, weight)
    recovered = [model.submodel.scatter(model.weights, reference) for model, _ in models]
    for name, tensor in mean.result().items():
        if tensor.is_floating_point():
            stack = torch.stack([state[name] for state in recovered])
            assert bool((tensor <= stack.amax(0) + 1e-6).all())
            assert bool((tensor >= stack.amin(0) - 1e-6).all())


def test_full_submodels_give_fedavg_under_every_rule():
    graph = tiny_graph()
    states = [tiny_net(seed).state_dict() for seed in (1, 2)]
    results = []
    for mean in (*(RecoveredMean(tiny_net(9).state_dict(), r) for r in ("paper", "gated", "zero")),
                 CoverageMean(tiny_net(9).state_dict())):  # fmt: skip
        for state, weight in zip(states, (10, 30), strict=True):
            mean.add(LocalModel(state, graph.full()), weight)
        results.append(mean.result())
    expected = (states[0]["fc.weight"].double() * 10 + states[1]["fc.weight"].double() * 30) / 40
    for result in results:
        assert torch.equal(result["fc.weight"], expected.float())
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def test_one_client_with_the_full_net_is_taken_over_bit_for_bit():
    graph, state = tiny_graph(), tiny_net(3).state_dict()
    mean = RecoveredMean(tiny_net(9).state_dict())
    mean.add(LocalModel(state, graph.full()), 17)
    result = mean.result()
    assert all(torch.equal(result[n], state[n]) for n in state if state[n].is_floating_point())


def test_recovery_is_the_worked_example():
    # W = (1,2,3,4) per channel of the stem's bias; kept {0, 2} trained to (4, 2) -> (4, 2, 2, 4)
    net = tiny_net(0, width=4)
    graph = tiny_graph(net)
    stream = graph.group("stem")
    net.stem.bias.data = torch.tensor([1.0, 2, 3, 4])
    values = {g: torch.zeros(g.size) for g in graph.groups}
    values[stream] = torch.tensor([1.0, 0, 1, 0])
    from dapperfl.core.scores import Scores

    submodel = Scores(graph, values).keep({stream: 2})
    small = submodel.slice(net.state_dict())
    small["stem.bias"] = torch.tensor([4.0, 2.0])
    mean = RecoveredMean(net.state_dict())
    mean.add(LocalModel(small, submodel), 5)
    assert mean.result()["stem.bias"].tolist() == [4, 2, 2, 4]


def test_coverage_divides_by_what_reached_an_entry():
    # one client holds channels {0}, the other {0, 1}: (2) and (4, 6) with equal weights -> (3, 6)
    net = tiny_net(0, width=4)
    graph = tiny_graph(net)
    stream = graph.group("stem")
    from dapperfl.core.scores import ordered_scores

    mean = CoverageMean(net.state_dict())
    for count, values in ((1, [2.0]), (2, [4.0, 6.0])):
        submodel = ordered_scores(graph).keep({stream: count})
        small = submodel.slice(net.state_dict())
        small["stem.bias"] = torch.tensor(values)
        mean.add(LocalModel(small, submodel), 1)
    result = mean.result()["stem.bias"]
    assert result[:2].tolist() == [3, 6]
    assert torch.equal(result[2:], net.stem.bias.detach()[2:])


def test_integers_come_from_the_reference():
    reference = tiny_net(9).state_dict()
    reference["bn1.num_batches_tracked"] = torch.tensor(41)
    state = tiny_net(1).state_dict() | {"bn1.num_batches_tracked": torch.tensor(7)}
    mean = RecoveredMean(reference)
    mean.add(LocalModel(state, tiny_graph().full()), 1)
    assert mean.result()["bn1.num_batches_tracked"].item() == 41


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight):
    mean = RecoveredMean(tiny_net().state_dict())
    with pytest.raises(MessageError, match="positive and finite"):
        mean.add(LocalModel(tiny_net().state_dict(), tiny_graph().full()), weight)


def test_a_misfit_is_refused_before_anything_is_folded():
    state = tiny_net().state_dict()
    mean = RecoveredMean(state)
    wrong = state | {"fc.weight": torch.zeros(2, 2)}
    with pytest.raises(MessageError, match=r'"fc.weight" has shape \(2, 2\), expected \(3, 8\)'):
        mean.add(LocalModel(wrong, tiny_graph().full()), 1)
    missing = {name: tensor for name, tensor in state.items() if name != "fc.bias"}
    with pytest.raises(MessageError, match=r'"fc\.bias" is missing'):
        mean.add(LocalModel(missing, tiny_graph().full()), 1)
    assert mean.weight == 0
    with pytest.raises(MessageError, match="no update was added"):
        mean.result()


@pytest.mark.parametrize("flat", [False, True])
def test_where_no_norm_scales_a_channel_the_mean_is_over_those_who_hold_it(flat):
    net = tiny_net(norm=False)
    graph, reference = tiny_graph(net), net.state_dict()
    assert graph.unscaled == {name for name in graph.parameters if name != "fc.bias"}
    gated = RecoveredMean(reference, "gated", flat=flat)
    paper, covered = RecoveredMean(reference), CoverageMean(reference)
    for seed, weight in ((1, 3.0), (2, 5.0)):
        submodel = random_scores(graph, generator(seed)).top(0.5, multiple=1)
        weights = submodel.slice(tiny_net(seed, norm=False).state_dict())
        for mean in (gated, paper, covered):
            mean.add(LocalModel(weights, submodel), weight)
    after, recovered = gated.result(), paper.result()
    assert_within_one_ulp(after, covered.result())
    assert not torch.equal(after["conv1.weight"], recovered["conv1.weight"])
    assert torch.equal(after["fc.bias"], recovered["fc.bias"])


def test_norms_that_do_not_learn_are_never_shut():
    net = tiny_net()
    net.bn1.requires_grad_(False)
    graph, reference = tiny_graph(net), net.state_dict()
    assert graph.gates == {"bn2.weight", "bn2.bias"}
    assert graph.norms == GATES
    submodel = random_scores(graph, generator(4)).top(0.5, multiple=1)
    mean = RecoveredMean(reference, "gated")
    mean.add(LocalModel(submodel.slice(reference), submodel), 1)
    after = mean.result()
    assert torch.equal(after["bn1.weight"], reference["bn1.weight"])
    assert bool((after["bn2.weight"] == 0).any())  # that one learns, and is shut


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("recovery", get_args(Recovery))
def test_what_does_not_learn_stays_what_it_is(recovery, flat):
    net = tiny_net()
    net.conv1.requires_grad_(False)
    net.bn1.requires_grad_(False)
    graph, reference = tiny_graph(net), net.state_dict()
    assert graph.frozen == {"conv1.weight", "bn1.weight", "bn1.bias"}
    mean = RecoveredMean(reference, recovery, flat=flat)
    for seed in (4, 5):
        submodel = random_scores(graph, generator(seed)).top(0.5, multiple=1)
        mean.add(LocalModel(submodel.slice(reference), submodel), 0.75)
    after = mean.result()
    assert all(torch.equal(after[name], reference[name]) for name in graph.frozen)
    moved = torch.equal(after["conv2.weight"], reference["conv2.weight"])
    assert moved is (recovery != "zero")


def test_an_unknown_recovery_is_named():
    with pytest.raises(ValueError, match='unknown recovery "half"'):
        RecoveredMean({}, "half")  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_number_of_clients():
    reference = tiny_net(9, width=32).state_dict()
    graph = tiny_graph(tiny_net(9, width=32))
    mean = RecoveredMean(reference)
    held = []
    for index in range(40):
        submodel = random_scores(graph, generator(index)).top([0.2, 0.8][index % 2])
        mean.add(LocalModel(submodel.slice(reference), submodel), 1)
        held.append(sum(num_bytes(part) for part in (mean.sums, mean.reached)))
    assert len(set(held)) == 1
    assert held[0] <= 4 * num_bytes(reference)
