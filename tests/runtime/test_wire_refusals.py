"""What cannot be true is refused: by a MessageError, and by nothing else."""

import json
from dataclasses import replace

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
    MOMENTS,
    PARCEL,
    STAMP,
    TASK,
    UPDATE,
    assert_same,
    closed,
    opened,
    update,
)
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.cost import cost
from dapperfl.core.messages import ClientUpdate, Device, LeftOut, LocalModel, Moments
from dapperfl.core.state import snapshot
from dapperfl.errors import MessageError
from dapperfl.runtime.wire import Codec, Parcel, Task

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


def refused(data: bytes, task: Task = TASK) -> str:
    """Return why a reply is refused, "" if it is not; any other error fails the test."""
    reason = ""
    try:
        CODEC.decode_reply(data, task)
    except MessageError as error:
        reason = str(error)
    assert reason.isprintable()
    return reason


def refused_or_fits(data: bytes, task: Task = TASK) -> bool:
    """Tell whether a reply is refused or is one that its task could have had."""
    try:
        reply = CODEC.decode_reply(data, task).message
    except MessageError:
        return True
    if not isinstance(reply, ClientUpdate):
        return isinstance(reply, LeftOut if task is TASK else LeftOut | Moments)
    shapes = {name: tuple(tensor.shape) for name, tensor in reply.model.weights.items()}
    return shapes == reply.model.submodel.shapes


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("schema", 2, "schema 2, this version of dapperfl reads 1"),
        ("schema", "1", '"schema" must be a whole number'),
        ("schema", True, '"schema" must be a whole number'),
        ("net", "0123456789abcdef", "another net"),
        ("kind", "moments", 'kind "moments" came, expected update or left out'),
        ("device", 4, "device 4 answers a task of device 3"),
        ("device", -1, '"device" is -1'),
        ("round", 7.0, '"round" must be a whole number'),
        ("round", 10**30, '"round" is far too large'),
        ("run", "x\ny", '"run" must be one line'),
        ("run", "x" * 301, '"run" must be one line'),
        ("num_samples", None, '"num_samples" must be a whole number'),
        ("cost", [1, 2, 3], '"cost" must be a list of 6'),
        ("cost", [1, 2, 3, 4, 5, -6], '"cost" is -6'),
        ("metrics", [], '"metrics" must be a JSON object'),
        ("metrics", {"loss": "small"}, '"loss" must be a number'),
        ("metrics", {"lo\x00ss": 1.0}, 'a name in "metrics" must be one line'),
        ("metrics", {str(n): 1.0 for n in range(65)}, '"metrics" has 65 entries'),
        ("fp16", 1, '"fp16" must be true or false'),
        ("fp16", True, 'does not say its "max_abs_error"'),
        ("more", 1, "1 facts too many"),
    ],
)
def test_wrong_facts_are_refused(key, value, reason):
    facts, tensors = opened(UPDATE)
    assert reason in refused(closed({**facts, key: value}, tensors))


@pytest.mark.parametrize("key", sorted(opened(UPDATE)[0]))
def test_every_fact_must_be_there(key):
    facts, tensors = opened(UPDATE)
    del facts[key]
    assert f'does not say its "{key}"' in refused(closed(facts, tensors))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 60_000, b'{"a":' * 10_000, b"9" * 5000, b"{}"],
)
def test_facts_that_are_no_facts_are_refused(text):
    assert refused(closed(text, opened(UPDATE)[1]))


KEPT = opened(UPDATE)[1]["kept"]
FLOATS = opened(UPDATE)[1]["float32"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kept": KEPT[:-1].clone()}, "24 bits"),
        ({"kept": torch.cat([KEPT, KEPT])}, "24 bits"),
        ({"kept": KEPT.to(torch.int8)}, "24 bits"),
        ({"kept": torch.zeros_like(KEPT)}, "must be a non-empty list"),
        ({"kept": torch.full_like(KEPT, 255)}, "expected float32 of shape"),
        ({"kept": None}, 'no tensor "kept"'),
        ({"float32": FLOATS[:-1].clone()}, "expected float32 of shape"),
        ({"float32": torch.cat([FLOATS, FLOATS])}, "expected float32 of shape"),
        ({"float32": FLOATS.reshape(1, -1)}, "expected float32 of shape"),
        ({"float32": FLOATS.double()}, "is float64 of shape"),
        ({"float32": FLOATS.half()}, "is float16 of shape"),
        ({"float32": None}, 'no tensor "float32"'),
        ({"int64": torch.zeros(1, dtype=torch.int64)}, "expected int64 of shape (2,)"),
        ({"spare": torch.zeros(3)}, "1 tensors too many"),
        ({"float32": FLOATS.to(torch.complex64)}, "number format that no net has"),
        ({"shared/x": torch.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1)}, "shape that nothing has"),
        ({"shared/a\nb": torch.zeros(1)}, "name that cannot be shown"),
        ({"shared/" + "x" * 301: torch.zeros(1)}, "name that cannot be shown"),
    ],
)
def test_wrong_tensors_are_refused(changes, reason):
    facts, tensors = opened(UPDATE)
    changed = {name: t for name, t in (tensors | changes).items() if t is not None}
    assert reason in refused(closed(facts, changed))


def test_a_truth_value_must_be_one():
    facts, tensors = opened(CODEC.encode_reply(update(shared={"yes": torch.tensor([True])}), STAMP))
    whole = closed(facts, tensors)
    data = whole[:-1] + b"\x02"  # of all formats it has the smallest entries, and lies last
    assert whole[-1:] == b"\x01"
    assert "neither 0 nor 1" in refused(data)


def test_too_large_a_message_is_not_even_opened(monkeypatch):
    def opening(_):
        pytest.fail("it was opened")

    monkeypatch.setattr("dapperfl.runtime.packing.deserialize", opening)
    limit = cost(GRAPH.full()).upload_bytes
    assert f"expected at most {limit}" in refused(bytes(limit + 2**17 + 1), ASKED)
    assert "too large" in refused((2**16 + 1).to_bytes(8, "little") + bytes(100))


def test_a_huge_shape_of_nothing_is_refused():
    entry = '{"dtype":"F32","shape":[0,1099511627776,1099511627776],"data_offsets":[0,0]}'
    header = ('{"shared/x":' + entry + "}").encode()
    assert "shape that nothing has" in refused(len(header).to_bytes(8, "little") + header)


def test_what_a_method_sends_beside_has_a_limit(monkeypatch):
    monkeypatch.setattr("dapperfl.runtime.wire.SHARED_LIMIT", 100)
    data = CODEC.encode_reply(update(shared={"x": torch.zeros(26)}), STAMP)
    assert "exceeds 100 bytes" in refused(data)


def test_another_net_is_noticed():
    other = tiny_net(width=4)
    codec = Codec.of(other, tiny_graph(other))
    with pytest.raises(MessageError, match="another net"):
        codec.decode_reply(UPDATE, TASK)
    with pytest.raises(MessageError, match="another net"):
        codec.decode_task(PARCEL)
    with pytest.raises(MessageError, match="another net"):
        codec.decode_device(CODEC.encode_device(DEVICE))


def test_a_task_must_come_with_its_own_model():
    other = CODEC.encode_model(LocalModel(snapshot(tiny_net(1)), GRAPH.full()))
    with pytest.raises(MessageError, match="not the one that the task names"):
        CODEC.decode_task(replace(PARCEL, model=other))


def test_a_message_cut_short_or_made_longer_is_refused():
    for length in [*range(700), *range(700, len(UPDATE), 101), len(UPDATE) - 1]:
        assert refused(UPDATE[:length])
    for length in (1, 8, 1000):
        assert refused(UPDATE + bytes(length))
        assert refused(bytes(length) + UPDATE)


@given(data=st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_noise_is_refused(data):
    assert refused(data)
    assert refused(data, ASKED)
    with pytest.raises(MessageError):
        CODEC.decode_task(Parcel(data, data))
    with pytest.raises(MessageError):
        CODEC.decode_device(data)


@given(header=ANY_JSON, body=st.binary(max_size=32))
@settings(max_examples=100, deadline=None)
def test_noise_in_the_right_format_is_refused(header, body):
    text = json.dumps(header).encode()
    assert refused(len(text).to_bytes(8, "little") + text + body)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, Task]:
    """Draw a message of which some bytes are other ones, mostly in its header and facts."""
    message = draw(st.sampled_from([UPDATE, LEFT_OUT, MOMENTS]))
    front = st.integers(0, min(700, len(message) - 1))
    broken = bytearray(message)
    for _ in range(draw(st.integers(1, 4))):
        broken[draw(front | st.integers(0, len(message) - 1))] = draw(st.integers(0, 255))
    return bytes(broken), ASKED if message is MOMENTS else TASK


@given(damaged())
@settings(max_examples=100, deadline=None)
def test_a_damaged_message_is_refused_or_still_fits(message):
    assert refused_or_fits(*message)


@pytest.mark.slow
@given(damaged())
@settings(max_examples=10_000, deadline=None)
def test_many_damaged_messages_are_refused_or_still_fit(message):
    assert refused_or_fits(*message)


@given(place=st.integers(0, len(PARCEL.task) - 1), byte=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_a_damaged_task_is_refused_or_still_fits(place, byte):
    broken = bytearray(PARCEL.task)
    broken[place] = byte
    try:
        back = CODEC.decode_task(replace(PARCEL, task=bytes(broken))).message
    except MessageError:
        return
    assert_same(back.model.weights, GLOBAL.weights)


@given(key=st.sampled_from(sorted(opened(UPDATE)[0])), value=ANY_JSON)
@settings(max_examples=100, deadline=None)
def test_any_value_of_any_fact_is_refused_or_fits(key, value):
    facts, tensors = opened(UPDATE)
    assert refused_or_fits(closed(json.dumps({**facts, key: value}).encode(), tensors))


@given(
    name=st.sampled_from(["facts", "kept", "float32", "int64", "shared/means", "new"]),
    shape=st.lists(st.integers(0, 40), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.uint8, torch.bool, torch.bfloat16]),
)
@settings(max_examples=100, deadline=None)
def test_any_tensor_in_any_place_is_refused_or_fits(name, shape, dtype):
    facts, tensors = opened(UPDATE)
    assert refused_or_fits(closed(facts, tensors | {name: torch.ones(shape).to(dtype)}))


def test_the_device_is_what_the_server_knows_of_it():
    data = CODEC.encode_reply(update(device=Device(3, "boast", 0.9, 10**8)), STAMP)
    assert CODEC.decode_reply(data, TASK).message.device == DEVICE
