from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.letters import (
    ASKED,
    CODEC,
    DEVICE,
    GLOBAL,
    GRAPH,
    LEFT_OUT,
    MODEL,
    MOMENTS,
    NET,
    PARCEL,
    SHARED,
    SMALL,
    STAMP,
    TASK,
    UPDATE,
    assert_same,
    moments,
    names_in,
    update,
    with_weights,
)
from tests.tiny import tiny_examples, tiny_graph, tiny_net
from torch import nn

from dapperfl import nets
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.cost import cost
from dapperfl.core.messages import (
    Assignment,
    ClientCost,
    ClientUpdate,
    Device,
    LeftOut,
    LocalModel,
    Moments,
    Work,
)
from dapperfl.core.scores import l1_scores
from dapperfl.core.state import State, num_bytes, snapshot
from dapperfl.core.submodel import Submodel
from dapperfl.data.batches import Batches
from dapperfl.errors import MessageError
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fpl import FPL
from dapperfl.runtime.local import Trade
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.training import train_client
from dapperfl.runtime.wire import Codec, Received, parcels

HALF = Codec.of(NET, GRAPH, fp16=True)


def read_update(data: bytes, codec: Codec = CODEC) -> tuple[ClientUpdate, Received]:
    received = codec.decode_reply(data, TASK)
    assert isinstance(received.message, ClientUpdate)
    return received.message, received


# --- what goes in comes out ---


def test_an_update_comes_back_bit_for_bit():
    sent = update()
    back, received = read_update(UPDATE)
    assert_same(back.model.weights, sent.model.weights)
    assert_same(back.shared, sent.shared)
    assert back.model.submodel.to_lists() == SMALL.to_lists()
    assert (back.device, back.num_samples, back.cost) == (DEVICE, 20, sent.cost)
    assert back.metrics == {"loss": 0.1 + 0.2}
    assert (received.stamp, received.num_bytes) == (STAMP, len(UPDATE))
    assert received.rounding is None


def test_odd_numbers_survive_too():
    odd = torch.tensor([-0.0, torch.inf, torch.nan, 1e-45, 3.4e38])
    kept = update().model.weights["fc.bias"]
    sent = with_weights({"fc.bias": odd[: len(kept)]})
    back, _ = read_update(CODEC.encode_reply(sent, STAMP))
    assert_same(back.model.weights, sent.model.weights)


def test_a_net_of_doubles_stays_one():
    net = tiny_net().double()
    graph = tiny_graph(tiny_net())
    codec = Codec.of(net, graph)
    model = LocalModel(snapshot(net), graph.full())
    task = Assignment(1, DEVICE, model, 1)
    sent = ClientUpdate(DEVICE, model, 5, ClientCost())
    back = codec.decode_reply(codec.encode_reply(sent, STAMP), task).message
    assert isinstance(back, ClientUpdate)
    assert_same(back.model.weights, model.weights)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_submodel_and_any_small_state_come_back(data):
    kept = {
        group: torch.tensor(sorted(data.draw(st.sets(st.integers(0, group.size - 1), min_size=1))))
        for group in GRAPH.groups
    }
    submodel = Submodel(GRAPH, kept)
    dtypes = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool]
    shapes = st.lists(st.integers(0, 3), max_size=3)
    name = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=8)
    shared: State = {
        key: torch.randint(0, 2, tuple(shape)).to(data.draw(st.sampled_from(dtypes)))
        for key, shape in data.draw(st.dictionaries(name, shapes, max_size=4)).items()
    }
    model = LocalModel(submodel.slice(GLOBAL.weights), submodel)
    back, _ = read_update(CODEC.encode_reply(update(model=model, shared=shared), STAMP))
    assert back.model.submodel.to_lists() == submodel.to_lists()
    assert_same(back.model.weights, model.weights)
    assert_same(back.shared, shared)


def test_shared_tensors_may_lie_in_one_block_of_memory():
    block = torch.arange(8.0)
    shared = {"left": block[:4], "right": block[4:], "turned": block.view(2, 4).T}
    back, _ = read_update(CODEC.encode_reply(update(shared=shared), STAMP))
    assert_same(back.shared, shared)


def test_an_assignment_comes_back_bit_for_bit():
    received = CODEC.decode_task(PARCEL)
    back = received.message
    assert isinstance(back, Assignment)
    assert_same(back.model.weights, GLOBAL.weights)
    assert_same(back.shared, SHARED)
    assert not back.model.submodel.kept
    assert (back.round_num, back.device, back.epochs) == (7, DEVICE, 5)
    assert received.stamp == STAMP
    assert received.num_bytes == len(PARCEL.task) + len(PARCEL.model)


def test_an_assigned_submodel_comes_back():
    small = LocalModel(SMALL.slice(GLOBAL.weights), SMALL)
    parcel = next(parcels(CODEC, [replace(TASK, model=small)], "run-1"))
    back = CODEC.decode_task(parcel).message.model
    assert back.submodel.to_lists() == SMALL.to_lists()
    assert_same(back.weights, small.weights)


def test_a_statistics_task_comes_back():
    back = CODEC.decode_task(next(parcels(CODEC, [ASKED], "run-1"))).message
    assert type(back) is type(ASKED)
    assert (back.round_num, back.device) == (7, DEVICE)
    assert_same(back.model.weights, GLOBAL.weights)


def test_moments_of_one_batch_come_back_bit_for_bit():
    sent = moments()
    back = CODEC.decode_reply(MOMENTS, ASKED).message
    assert isinstance(back, Moments)
    assert_same(back.means, sent.means)
    for name, second in sent.second.items():
        assert torch.allclose(back.second[name], second, rtol=1e-12)
    assert (back.device, back.num_samples, back.cost) == (DEVICE, 20, sent.cost)


def test_a_client_may_say_why_it_stays_out():
    back = CODEC.decode_reply(LEFT_OUT, TASK).message
    assert back == LeftOut(DEVICE, "the battery is empty")
    assert CODEC.decode_reply(LEFT_OUT, ASKED).message == back


def test_a_reason_becomes_one_printable_line():
    long = LeftOut(DEVICE, "no\nroom \x1b[31m" + "x" * 1000)
    back = CODEC.decode_reply(CODEC.encode_reply(long, STAMP), TASK).message
    assert isinstance(back, LeftOut)
    assert back.reason == "no room  [31m" + "x" * (300 - 13)


def test_a_device_introduces_itself():
    assert CODEC.decode_device(CODEC.encode_device(DEVICE)) == DEVICE


def test_what_does_not_fit_the_net_is_not_sent():
    with pytest.raises(MessageError, match=r'"fc.bias" is float32 of shape \(2,\), expected'):
        CODEC.encode_reply(with_weights({"fc.bias": torch.zeros(2)}), STAMP)
    with pytest.raises(MessageError, match=r'"fc.bias" is float64'):
        CODEC.encode_reply(with_weights({"fc.bias": torch.zeros(3).double()}), STAMP)
    with pytest.raises(MessageError, match=r'"stem.weight" is missing'):
        CODEC.encode_model(LocalModel({}, GRAPH.full()))


# --- what it costs ---


@cache
def traced(width: int) -> tuple[nn.Module, ChannelGraph]:
    net = nets.build("resnet10", num_classes=10, width=width)
    return net, ChannelGraph.trace(net, torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize(
    ("width", "rho"), [*((w, r) for w in (8, 16) for r in (0.0, 0.2, 0.4, 0.6, 0.8)), (64, 0.6)]
)
def test_an_upload_has_the_bytes_of_the_formula(width, rho):
    net, graph = traced(width)
    submodel = l1_scores(graph, snapshot(net)).top(rho, scope="inner")
    model = LocalModel(submodel.slice(snapshot(net)), submodel)
    spent = ClientCost(*[10**12] * 6)
    sent = ClientUpdate(DEVICE, model, 10**6, spent, metrics={"loss": 0.1 + 0.2})
    expected = cost(submodel).upload_bytes
    exact = len(Codec.of(net, graph).encode_reply(sent, STAMP))
    assert expected < exact < min(expected * 1.01, expected + 600)
    halved = len(Codec.of(net, graph, fp16=True).encode_reply(sent, STAMP))
    floats = 4 * sum(t.numel() for t in model.weights.values() if t.is_floating_point())
    assert 0 < halved - (expected - floats / 2) < 650


def test_what_a_method_sends_beside_costs_its_bytes():
    bare = len(CODEC.encode_reply(update(shared={}), STAMP))
    shared = {"means": torch.zeros(10, 512), "present": torch.zeros(10, dtype=torch.bool)}
    more = len(CODEC.encode_reply(update(shared=shared), STAMP)) - bare
    assert num_bytes(shared) <= more < num_bytes(shared) + 200


def test_moments_cost_two_numbers_a_channel():
    channels = sum(GRAPH.shapes[name][0] for name in CODEC.cargo.norms)
    assert 8 * channels < len(MOMENTS) < 8 * channels + 500


def test_the_global_model_is_encoded_once_for_all():
    tasks = [replace(TASK, device=Device(number, "dark", 0.2, 9)) for number in range(3)]
    first, second, third = parcels(CODEC, tasks, "run-1")
    assert first.model is second.model is third.model
    assert len({first.task, second.task, third.task}) == 3
    bare = next(parcels(CODEC, [replace(TASK, shared={})], "run-1"))
    assert len(bare.task) < 500


def test_equal_models_have_equal_bytes():
    assert CODEC.encode_model(LocalModel(snapshot(NET), GRAPH.full())) == MODEL


def test_no_name_of_the_net_travels():
    assert names_in(MODEL) == {"facts", "kept", "float32", "int64"}
    assert b"conv" not in MODEL
    assert b"conv" not in UPDATE


# --- 16 bits ---


def test_sixteen_bits_say_what_they_lost():
    sent = update()
    back, received = read_update(HALF.encode_reply(sent, STAMP))
    worst, lost, whole = 0.0, 0.0, 0.0
    for name, tensor in sent.model.weights.items():
        other = back.model.weights[name]
        assert other.dtype == tensor.dtype
        error = (other.double() - tensor.double()).abs()
        assert (error <= tensor.double().abs() * 2**-11 + 2**-25).all()
        if tensor.is_floating_point():
            worst = max(worst, error.max().item())
            lost += error.square().sum().item()
            whole += tensor.double().square().sum().item()
    assert received.rounding is not None
    assert 0 < received.rounding.max_abs_error == pytest.approx(worst)
    assert 0 < received.rounding.relative_error == pytest.approx((lost / whole) ** 0.5)
    assert_same(back.shared, sent.shared)


def test_numbers_too_large_for_sixteen_bits_travel_in_thirty_two():
    sent = with_weights({"fc.bias": torch.tensor([1.0, 2.0, 70_000.0])})
    back, received = read_update(HALF.encode_reply(sent, STAMP))
    assert received.rounding is None
    assert_same(back.model.weights, sent.model.weights)


def test_the_model_goes_down_exactly_whatever_comes_up():
    assert HALF.encode_model(GLOBAL) == MODEL


# --- data stays at home ---


@pytest.mark.parametrize("method", [DapperFL(), FPL()])
def test_no_picture_is_in_what_a_client_sends(method):
    examples = tiny_examples(12)
    examples.images[:, :, 1, :] = torch.tensor([7, 77, 177, 7, 77, 177], dtype=torch.uint8)
    net = tiny_net()
    work = Work(
        1, Device(0, "light", 0.4, 12), LocalModel(snapshot(net), tiny_graph(net).full()), 2
    )
    trade = Trade(method, net, TrainSettings(epochs=2, batch_size=4, lr=0.05))
    data = Batches(examples, batch_size=4, pad=0)
    sent = train_client(trade, work, data, seed=0).update
    bytes_sent = Codec.of(net, work.model.submodel.graph).encode_reply(sent, STAMP)
    marks = [
        bytes([7, 77, 177, 7, 77, 177])
    ]  # a row of any picture, as stored and as the net sees it
    marks += [batch.x[0, 0, 1, :2].numpy().tobytes() for batch in data.clean(1)]
    for picture, batch in zip(examples.images, data.clean(1), strict=True):
        marks += [picture[0, 0].numpy().tobytes(), batch.x[0, 0, 0].numpy().tobytes()]
    assert all(mark not in bytes_sent for mark in marks)
    assert marks[0] in examples.images.numpy().tobytes()
