from dataclasses import replace
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.rig import assigned, server_of
from tests.runtime.letters import (
    ASKED,
    CODEC,
    DEVICE,
    GLOBAL,
    GRAPH,
    SHARED,
    SMALL,
    STAMP,
    TASK,
    moments,
    update,
    with_weights,
)
from tests.tiny import tiny_net

from dapperfl.core.messages import ClientUpdate, LocalModel
from dapperfl.core.net import Batch
from dapperfl.core.scores import l1_scores
from dapperfl.core.state import State
from dapperfl.core.styles import OWN, style_of
from dapperfl.core.submodel import Submodel
from dapperfl.errors import ConfigError, MessageError
from dapperfl.methods.fedavg import FedAvg
from dapperfl.methods.fpl import FPL
from dapperfl.methods.nefl import NeFL
from dapperfl.runtime.drift import drift
from dapperfl.runtime.guard import (
    GuardSettings,
    check_device,
    check_moments,
    check_stamp,
    check_task,
    check_update,
    expected_shared,
    knowing_pictures,
)
from dapperfl.runtime.local import Trade
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.wire import Stamp

SETTINGS = GuardSettings()
SHAPE = update().model.weights["conv1.weight"].shape


def checked(sent: ClientUpdate, settings: GuardSettings = SETTINGS) -> ClientUpdate:
    return check_update(sent, TASK, SHARED, settings)


def far(factor: float) -> ClientUpdate:
    """Return an update whose parameters went so many norms of theirs away."""
    weights = update().model.weights
    start = SMALL.slice(GLOBAL.weights)
    moved = {name: start[name] * (1 + factor) for name in GRAPH.parameters}
    return update(model=LocalModel(weights | moved, SMALL))


# --- updates ---


def test_an_honest_update_passes_as_it_is():
    sent = update()
    assert checked(sent) is sent


@pytest.mark.parametrize("count", [0, -1, -(2**63), 10**9, 2**62])
def test_impossible_sample_counts_are_refused(count):
    with pytest.raises(MessageError, match=f"{count} samples are claimed"):
        checked(update(num_samples=count))
    with pytest.raises(MessageError, match=f"{count} samples are claimed"):
        check_moments(moments(num_samples=count), ASKED, SETTINGS)


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("name", ["fc.bias", "bn1.running_mean"])
def test_numbers_that_are_none_are_refused(value, name):
    broken = update().model.weights[name].clone()
    broken[-1] = value
    with pytest.raises(MessageError, match=f'"{name}" is not finite'):
        checked(with_weights({name: broken}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": replace(DEVICE, id=4)}, "expected Device"),
        ({"device": replace(DEVICE, rho=0.0)}, "expected Device"),
        ({"metrics": {"loss": nan}}, 'metric "loss" is nan'),
        ({"metrics": {"loss": 1.0, "more": inf}}, 'metric "more" is inf'),
        ({"metrics": {"loss": -1e308}}, 'metric "loss" is -1e+308'),
        ({"metrics": {}}, 'does not say its "loss"'),
        ({"shared": {}}, "expected ['means', 'nothing', 'present', 'rung']"),
        ({"shared": SHARED | {"more": torch.zeros(1)}}, "shared tensors are"),
        ({"shared": SHARED | {"means": torch.zeros(3, 2)}}, "expected torch.float32 of shape"),
        ({"shared": SHARED | {"means": torch.zeros(2, 3).double()}}, "torch.float64"),
        ({"shared": SHARED | {"means": torch.full((2, 3), nan)}}, '"means" is not finite'),
        ({"shared": SHARED | {"means": torch.full((2, 3), 2e12)}}, "beyond 1e+12"),
        ({"shared": SHARED | {"rung": torch.tensor(1)}}, '"rung" came back changed'),
    ],
)
def test_facts_that_cannot_be_are_refused(changes, reason):
    with pytest.raises(MessageError) as refused:
        checked(update(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"conv1.weight": torch.zeros(SHAPE[0] + 1, *SHAPE[1:])}, "expected"),
        ({"conv1.weight": torch.zeros(SHAPE).double()}, "is torch.float64"),
        ({"more": torch.zeros(1)}, "does not have the tensors of the net"),
        ({"bn1.running_var": -update().model.weights["bn1.running_var"]}, "negative variance"),
        ({"bn1.running_mean": update().model.weights["bn1.running_mean"] + 2e12}, "beyond"),
    ],
)
def test_tensors_that_cannot_be_are_refused(changes, reason):
    with pytest.raises(MessageError, match=reason):
        checked(with_weights(changes))


def test_a_missing_tensor_is_refused():
    weights = update().model.weights
    del weights["fc.bias"]
    with pytest.raises(MessageError, match="does not have the tensors"):
        checked(update(model=LocalModel(weights, SMALL)))


@pytest.mark.parametrize("channels", [[0, 1, 99], [-1, 2], [1, 1], [2, 1], []])
def test_indices_out_of_range_or_repeated_cannot_even_be_written(channels):
    with pytest.raises(MessageError, match="kept channels of group"):
        Submodel(GRAPH, {GRAPH.groups[0]: torch.tensor(channels, dtype=torch.int64)})


def test_channels_that_were_not_sent_are_refused():
    smaller = l1_scores(GRAPH, GLOBAL.weights).top(0.7, scope="all", multiple=1)
    sent = LocalModel(smaller.slice(GLOBAL.weights), smaller)
    with pytest.raises(MessageError, match="channels that the client was not sent"):
        check_update(update(), replace(TASK, model=sent), SHARED, SETTINGS)


def test_a_submodel_may_come_back_as_it_was_sent():
    sent = LocalModel(SMALL.slice(GLOBAL.weights), SMALL)
    check_update(update(), replace(TASK, model=sent), SHARED, SETTINGS)


def test_an_absurd_norm_is_refused():
    checked(far(99))
    with pytest.raises(MessageError, match=r"is 101 norms away .* at most 100 are"):
        checked(far(101))
    with pytest.raises(MessageError, match="norms away"):
        checked(far(1e37))
    with pytest.raises(MessageError, match=r"at most 0.5"):
        checked(far(0.6), GuardSettings(max_drift=0.5))


def test_clipping_cuts_an_update_back():
    gentle = GuardSettings(clip=0.5)
    near, sent = far(0.4), far(2.0)
    assert checked(near, gentle) is near
    cut = checked(sent, gentle)
    assert drift(GLOBAL, cut.model) == pytest.approx(0.5)
    start = SMALL.slice(GLOBAL.weights)
    for name in GRAPH.parameters:
        assert torch.allclose(cut.model.weights[name], start[name] * 1.5, rtol=1e-4)
    assert torch.equal(
        cut.model.weights["bn1.running_mean"], sent.model.weights["bn1.running_mean"]
    )
    assert drift(GLOBAL, sent.model) == pytest.approx(2.0)  # the update itself stays as it is


@given(factor=st.floats(-1000, 1000), clip=st.floats(0.1, 200))
def test_what_passes_is_within_both_limits(factor, clip):
    settings = GuardSettings(clip=clip)
    try:
        passed = checked(far(factor), settings)
    except MessageError:
        assert abs(factor) > 99.9
    else:
        assert drift(GLOBAL, passed.model) <= min(clip, settings.max_drift) * (1 + 1e-4)


# --- moments ---


def test_honest_moments_pass():
    sent = moments()
    assert check_moments(sent, ASKED, SETTINGS) is sent


MEAN = CODEC.cargo.norms[0]
VARIANCE = MEAN.replace("mean", "var")


@pytest.mark.parametrize(
    ("means", "second", "reason"),
    [
        ({MEAN: torch.full((16,), nan)}, {}, "not finite"),
        ({}, {VARIANCE: torch.full((16,), inf)}, "not finite"),
        ({MEAN: torch.full((16,), 3.0)}, {VARIANCE: torch.full((16,), 8.9)}, "negative variance"),
        ({}, {VARIANCE: torch.full((16,), -1.0)}, "negative variance"),
        ({}, {VARIANCE: torch.full((16,), 1e13)}, "beyond 1e"),
        ({MEAN: torch.full((16,), 1e13)}, {VARIANCE: torch.full((16,), 1e26)}, "beyond 1e"),
        ({MEAN: torch.zeros(15)}, {VARIANCE: torch.zeros(15)}, r"has shape \(15,\)"),
        ({"x.running_mean": torch.zeros(1)}, {"x.running_var": torch.zeros(1)}, "no running mean"),
        ({"x.running_mean": torch.zeros(1)}, {}, "not of the same layers"),
    ],
)
def test_moments_that_cannot_be_are_refused(means, second, reason):
    def doubled(state: State) -> State:
        return {name: tensor.double() for name, tensor in state.items()}

    sent = moments()
    wrong = replace(sent, means=sent.means | doubled(means), second=sent.second | doubled(second))
    with pytest.raises(MessageError, match=reason):
        check_moments(wrong, ASKED, SETTINGS)


def test_a_channel_that_never_changes_has_moments():
    means = moments().means | {MEAN: torch.full((16,), 3.1).double()}
    second = moments().second | {VARIANCE: torch.full((16,), 3.1).double().square() - 1e-9}
    check_moments(moments(means=means, second=second), ASKED, SETTINGS)


def test_moments_of_another_device_are_refused():
    with pytest.raises(MessageError, match="expected Device"):
        check_moments(moments(device=replace(DEVICE, id=9)), ASKED, SETTINGS)


# --- who and when ---


@pytest.mark.parametrize(
    "metrics",
    [
        {"tested": 10, "correct": 11},
        {"tested": -1, "correct": -2},
        {"tested": 10, "correct": -1},
        {"tested": 10**9, "correct": 1},
        {"correct": 1},
    ],
)
def test_right_answers_that_cannot_be_are_refused(metrics):
    checked(update(metrics={"loss": 0.1, "tested": 10, "correct": 10}))
    with pytest.raises(MessageError, match="are claimed"):
        checked(update(metrics={"loss": 0.1, **metrics}))


def test_the_stamp_must_be_that_of_the_round():
    check_stamp(STAMP, Stamp("run-1", 7))
    with pytest.raises(MessageError, match="belongs to round 6, this is round 7"):
        check_stamp(Stamp("run-1", 6), STAMP)
    with pytest.raises(MessageError, match='another run, "run-0"'):
        check_stamp(Stamp("run-0", 7), STAMP)


def test_a_device_must_be_possible():
    assert check_device(DEVICE, SETTINGS) is DEVICE
    for rho in (-0.1, 1.0, nan, inf):
        with pytest.raises(MessageError, match="rho is"):
            check_device(replace(DEVICE, rho=rho), SETTINGS)
    with pytest.raises(MessageError, match="0 samples"):
        check_device(replace(DEVICE, num_samples=0), SETTINGS)


# --- what a client believes ---


def test_an_honest_task_passes():
    assert check_task(TASK, DEVICE, 6, SETTINGS) is TASK
    assert check_task(TASK, DEVICE, 7, SETTINGS) is TASK  # a resumed server asks again
    assert check_task(ASKED, DEVICE, 7, SETTINGS) is ASKED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round_num": 4}, "round 4 is over; from round 5 on I answer"),
        ({"round_num": 0}, "round 0 is over"),
        ({"epochs": 0}, "0 epochs are asked for"),
        ({"epochs": 1001}, "1001 epochs are asked for, expected 1 to 1000"),
        ({"device": replace(DEVICE, id=1)}, "the task is for Device"),
        ({"device": replace(DEVICE, rho=0.0)}, "the task is for Device"),
        ({"shared": {"x": torch.tensor([nan])}}, '"x" is not finite'),
        (
            {"model": LocalModel(GLOBAL.weights | {"fc.bias": torch.full((3,), inf)}, SMALL)},
            '"fc.bias" is not finite',
        ),
    ],
)
def test_a_client_refuses_what_no_server_asks(changes, reason):
    with pytest.raises(MessageError, match=reason):
        check_task(replace(TASK, **changes), DEVICE, 5, SETTINGS)


# --- what methods send beside the weights ---


def test_the_expected_shape_of_shared_comes_from_the_method():
    batch = Batch(torch.zeros(2, 3, 6, 6), torch.zeros(2, dtype=torch.int64))

    def expected(method) -> dict[str, tuple[torch.Size, torch.dtype]]:
        net = method.prepare(tiny_net(), "fc")
        task = assigned(method, server_of(method), 1)
        found = expected_shared(Trade(method, net, TrainSettings()), task, batch)
        return {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()}

    assert expected(FedAvg()) == {}
    assert expected(FedAvg(restyle=0.5)) == {OWN: (torch.Size([4, 3]), torch.float32)}
    assert expected(NeFL()) == {"rung": (torch.Size([]), torch.int64)}
    assert expected(FPL()) == {  # three classes, eight features
        "means": (torch.Size([3, 8]), torch.float32),
        "present": (torch.Size([3]), torch.bool),
    }


@pytest.mark.parametrize("beyond", [1001.0, -1001.0, torch.nan, torch.inf])
def test_a_style_that_no_picture_has_is_refused(beyond):
    honest = {OWN: torch.ones(4, 3)}
    task = replace(TASK, shared={})
    sent = replace(update(), shared=dict(honest))
    assert check_update(sent, task, honest, SETTINGS).shared is sent.shared
    sent.shared[OWN][2, 1] = beyond
    with pytest.raises(MessageError, match="its_style"):
        check_update(sent, task, honest, SETTINGS)


@pytest.mark.parametrize(
    "wrong", [{"max_drift": 0}, {"clip": -1}, {"max_samples": 0}, {"strikes": 0}]
)
def test_settings_have_ranges(wrong):
    with pytest.raises(ConfigError, match=r"guard\."):
        GuardSettings(**wrong)


def test_any_pictures_have_a_style_that_is_believed_and_nothing_else_has():
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.25, 0.3)
    most = knowing_pictures(SETTINGS, mean, std).max_style
    assert most == pytest.approx(4.5, rel=0.01)  # white in the first channel
    bytes_ = torch.zeros(4, 3, 8, 8)
    bytes_[1], bytes_[2, :, ::2] = 255, 255  # black, white, stripes, and half of it
    bytes_[3, :, :4] = 255
    scaled = (bytes_ / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    for some in ([0], [1], [2], [3], [0, 1], [0, 2], [0, 1, 2, 3]):
        style = style_of([Batch(scaled[some], torch.zeros(len(some)))])[OWN]
        assert float(style.abs().max()) <= most
    assert knowing_pictures(GuardSettings(max_style=2.0), mean, std).max_style == 2.0


@pytest.mark.parametrize(
    "claim",
    [
        {"parameters_trained": 10**6},
        {"parameters_uploaded": 10**6},
        {"peak_parameters": 10**9},
        {"train_flops": 10**18},
    ],
)
def test_costs_that_nobody_can_have_had_are_refused(claim):
    (name,) = claim
    sent = update()
    with pytest.raises(MessageError, match=f"{name} = .* is claimed, more than can be"):
        checked(replace(sent, cost=replace(sent.cost, **claim)))
    told = moments()
    with pytest.raises(MessageError, match=f"{name} = .* is claimed, more than can be"):
        check_moments(replace(told, cost=replace(told.cost, **claim)), ASKED, SETTINGS)
