import pytest
import torch
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.messages import LocalModel, ServerState

GRAPH = tiny_graph()


def at(value: float, round_num: int) -> ServerState:
    """Return a state whose every weight is one value."""
    weights = {
        name: torch.full_like(tensor, value) for name, tensor in tiny_net().state_dict().items()
    }
    return ServerState(round_num, LocalModel(weights, GRAPH.full()), ())


def run(values: list[float], part: float) -> ServerState:
    state = at(0.0, 0)
    for round_num, value in enumerate(values, 1):
        state = at(value, round_num).averaged(state.mean, part)
    return state


def test_over_all_rounds_the_mean_is_plain():
    mean = run([3.0, 5.0, 10.0], part=1.0).smooth().weights["stem.weight"]
    assert torch.allclose(mean, torch.full_like(mean, 6.0))  # the first value has no privilege


def test_over_a_part_of_the_rounds_the_window_grows_with_them():
    mean = run([1.0, 3.0, 7.5, 12.0], part=0.5).smooth().weights["stem.weight"]
    # 1 and 3 stand alone; 3 / 3 + 7.5 * 2 / 3 = 6; half of it and of 12 is 9
    assert torch.allclose(mean, torch.full_like(mean, 9.0))


def test_a_short_run_hands_out_its_last_model_to_the_bit():
    values = [0.1 * number for number in range(1, 11)]
    for name, tensor in run(values, part=0.1).smooth().weights.items():
        assert torch.equal(tensor, torch.full_like(tensor, values[-1])), name
    eleventh = run([*values, 5.0], part=0.1).smooth().weights["stem.weight"]
    assert torch.allclose(eleventh, torch.full_like(eleventh, (0.1 * 1.0 + 5.0) / 1.1))


def test_counters_are_the_last_ones():
    state = run([1.0, 3.0], part=1.0)
    counters = [name for name, t in state.mean.items() if not t.is_floating_point()]
    assert counters
    assert all(state.mean[name].eq(3).all() for name in counters)


@pytest.mark.parametrize("state", [at(1.0, 0), at(2.0, 4)])
def test_without_a_mean_the_model_is_what_it_is(state):
    assert state.smooth() is state


@pytest.mark.parametrize("part", [0.0, 1.0])
def test_what_a_state_is_told_to_show_it_shows(part):
    state = run([1.0, 3.0], part) if part else at(3.0, 2)
    others = at(7.0, 0).weights
    shown = state.showing(others)
    assert all(torch.equal(t, others[n]) for n, t in shown.smooth().weights.items())
    trained = others if not part else state.weights  # devices train on from what they had
    assert all(torch.equal(t, trained[n]) for n, t in shown.weights.items())


def test_a_cut_is_made_once_for_each_owner_and_key():
    server, made = at(1.0, 3), []

    def cut() -> LocalModel:
        made.append(LocalModel({}, GRAPH.full()))
        return made[-1]

    first = server.once("method", 0.4, cut)
    assert server.once("method", 0.4, cut) is first
    assert server.once("method", 0.8, cut) is not first
    assert server.once("another", 0.4, cut) is not first
    assert len(made) == 3


def test_the_next_state_has_no_cuts_of_the_one_before():
    server = at(1.0, 3)
    before = server.once("method", 0.4, lambda: server.model)
    after = server.advance(server.weights)
    assert after.once("method", 0.4, lambda: LocalModel({}, GRAPH.full())) is not before
