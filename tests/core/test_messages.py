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


def run(values: list[float], share: float) -> ServerState:
    state = at(0.0, 0)
    for round_num, value in enumerate(values, 1):
        state = at(value, round_num).averaged(state.mean, share)
    return state


def test_the_mean_is_plain_until_its_share_is_reached():
    mean = run([3.0, 5.0, 10.0], share=0.9).smooth().weights["stem.weight"]
    assert torch.allclose(mean, torch.full_like(mean, 6.0))  # the first value has no privilege


def test_later_the_share_decides():
    mean = run([1.0, 3.0, 7.0, 12.0], share=0.5).smooth().weights["stem.weight"]
    # (1 + 3) / 2 = 2; half of it and of 7 is 4.5; half of that and of 12 is 8.25
    assert torch.allclose(mean, torch.full_like(mean, 8.25))


def test_counters_are_the_last_ones():
    state = run([1.0, 3.0], share=0.5)
    counters = [name for name, t in state.mean.items() if not t.is_floating_point()]
    assert counters
    assert all(state.mean[name].eq(3).all() for name in counters)


@pytest.mark.parametrize("state", [at(1.0, 0), at(2.0, 4)])
def test_without_a_mean_the_model_is_what_it_is(state):
    assert state.smooth() is state


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
