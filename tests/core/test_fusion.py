import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import tiny_net

from dapperfl.core.fusion import fuse, fusion_factor


def test_the_factor_follows_the_schedule_of_the_paper():
    # (1 - .2)^(t-1) * .9 until it meets .1
    schedule = [fusion_factor(t, 0.9, 0.1, 0.2) for t in range(1, 13)]
    expected = [0.9, 0.72, 0.576, 0.4608, 0.36864, 0.294912, 0.2359296, 0.18874368]
    assert schedule[:8] == pytest.approx(expected)
    assert schedule[8:10] == pytest.approx([0.150994944, 0.1207959552])
    assert schedule[10:] == [0.1, 0.1]


def test_rounds_start_at_one():
    with pytest.raises(ValueError, match="start at 1, not 0"):
        fusion_factor(0, 0.9, 0.1, 0.2)


@given(
    t=st.integers(1, 200),
    alpha_0=st.floats(0, 1),
    alpha_min=st.floats(0, 1),
    epsilon=st.floats(0, 1),
)
def test_the_factor_never_grows_and_never_falls_below_its_minimum(t, alpha_0, alpha_min, epsilon):
    now = fusion_factor(t, alpha_0, alpha_min, epsilon)
    later = fusion_factor(t + 1, alpha_0, alpha_min, epsilon)
    assert alpha_min <= later <= now


def test_fusion_is_the_worked_example():
    # W = (1,2,3,4), ŵ = (5,-2,3,0), alpha = .5  ->  (3,0,3,2)
    fused = fuse({"w": torch.tensor([1.0, 2, 3, 4])}, {"w": torch.tensor([5.0, -2, 3, 0])}, 0.5)
    assert fused["w"].tolist() == [3, 0, 3, 2]


def test_fusion_at_one_forgets_the_local_parameters():
    fused = fuse({"w": torch.ones(3)}, {"w": torch.full((3,), 7.0)}, 1.0)
    assert fused["w"].tolist() == [1, 1, 1]


def test_fusion_at_zero_returns_the_local_tensors_themselves():
    local = {"w": torch.randn(3)}
    assert fuse({"w": torch.zeros(3)}, local, 0.0)["w"] is local["w"]


def test_statistics_and_integers_stay_local():
    theirs = {
        "bn.running_mean": torch.zeros(2),
        "bn.running_var": torch.zeros(2),
        "n": torch.tensor(0),
    }
    ours = {"bn.running_mean": torch.ones(2), "bn.running_var": torch.ones(2), "n": torch.tensor(5)}
    assert fuse(theirs, ours, 0.5) == ours


def test_only_named_parameters_are_fused_when_they_are_named():
    theirs, ours = (
        {"w": torch.zeros(1), "b": torch.zeros(1)},
        {"w": torch.ones(1), "b": torch.ones(1)},
    )
    fused = fuse(theirs, ours, 0.5, parameters=["w"])
    assert fused["w"].item() == 0.5
    assert fused["b"] is ours["b"]


def test_fused_end_to_end_every_bit_is_the_same():
    theirs, ours = tiny_net(1).state_dict(), tiny_net(2).state_dict()
    for name in list(ours):
        if "running" in name:
            ours[name] = torch.rand_like(ours[name])
    for parameters in (None, ["fc.weight", "conv1.weight"]):
        plain, flat = (
            fuse(theirs, ours, 0.3, parameters=parameters, flat=flat) for flat in (False, True)
        )
        assert plain.keys() == flat.keys()
        assert all(torch.equal(plain[name], flat[name]) for name in plain)
        assert not torch.equal(flat["fc.weight"], ours["fc.weight"])


def test_states_that_differ_are_fused_tensor_by_tensor():
    theirs, ours = {"w": torch.zeros(1)}, {"w": torch.ones(1), "extra": torch.ones(1)}
    fused = fuse(theirs, ours, 0.5, parameters=["w"], flat=True)
    assert fused["w"].item() == 0.5
    assert fused["extra"] is ours["extra"]
