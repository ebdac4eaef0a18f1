"""Messages about a tiny net, for tests of what crosses the wire."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from safetensors import deserialize
from safetensors.torch import load, save
from tests.tiny import tiny_graph, tiny_net

from dapperfl.core.messages import (
    Assignment,
    ClientCost,
    ClientUpdate,
    Device,
    LeftOut,
    LocalModel,
    Moments,
    StatisticsTask,
)
from dapperfl.core.scores import l1_scores
from dapperfl.core.state import State, snapshot
from dapperfl.runtime.facts import write_facts
from dapperfl.runtime.wire import Codec, Parcel, Stamp

NET = tiny_net()
GRAPH = tiny_graph(NET)
CODEC = Codec.of(NET, GRAPH)
DEVICE = Device(3, "light", 0.4, 20)
STAMP = Stamp("run-1", 7)
GLOBAL = LocalModel(snapshot(NET), GRAPH.full())
SMALL = l1_scores(GRAPH, GLOBAL.weights).top(0.4, scope="all", multiple=1)
SHARED: State = {
    "means": torch.arange(6.0).reshape(2, 3),
    "present": torch.tensor([True, False]),
    "rung": torch.tensor(2),
    "nothing": torch.empty(0, 5, dtype=torch.float64),
}
TASK = Assignment(7, DEVICE, GLOBAL, 5, SHARED)
ASKED = StatisticsTask(7, DEVICE, GLOBAL)


def update(**changes: Any) -> ClientUpdate:
    """Return an honest answer to TASK: a little away from what was sent."""
    weights = {
        name: tensor * 1.01 if tensor.is_floating_point() else tensor + 3
        for name, tensor in SMALL.slice(GLOBAL.weights).items()
    }
    model = LocalModel(weights, SMALL)
    spent = ClientCost(1, 2, 3, 4_000_000, 5, 6)
    honest = ClientUpdate(DEVICE, model, 20, spent, SHARED, {"loss": 0.1 + 0.2})
    return replace(honest, **changes)


def with_weights(changes: State) -> ClientUpdate:
    """Return the honest update with some of its tensors replaced."""
    honest = update().model
    return update(model=LocalModel(honest.weights | changes, honest.submodel))


def moments(**changes: Any) -> Moments:
    """Return an honest answer to ASKED, such as a single batch gives it."""
    means: State = {}
    second: State = {}
    for name in CODEC.cargo.norms:
        mean = GLOBAL.weights[name].double()
        variance = GLOBAL.weights[name.replace("mean", "var")].double()
        means[name] = mean
        second[name.replace("mean", "var")] = variance + mean.square()
    return replace(Moments(DEVICE, 20, ClientCost(train_flops=9), means, second), **changes)


def opened(data: bytes) -> tuple[dict[str, Any], State]:
    """Take a message apart without any check."""
    tensors = load(data)
    facts: dict[str, Any] = json.loads(bytes(tensors.pop("facts").tolist()))
    return facts, tensors


def closed(facts: Mapping[str, Any] | bytes, tensors: State) -> bytes:
    """Put a message together without any check."""
    text = facts if isinstance(facts, bytes) else write_facts(facts)
    return save({"facts": torch.tensor(list(text), dtype=torch.uint8), **tensors})


def names_in(data: bytes) -> set[str]:
    return {name for name, _ in deserialize(data)}


def assert_same(ours: State, theirs: State) -> None:
    """Compare states bit for bit, number formats and shapes included."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        other = theirs[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        assert tensor.numpy().tobytes() == other.contiguous().numpy().tobytes(), name


UPDATE = CODEC.encode_reply(update(), STAMP)
MOMENTS = CODEC.encode_reply(moments(), STAMP)
LEFT_OUT = CODEC.encode_reply(LeftOut(DEVICE, "the battery is empty"), STAMP)
MODEL = CODEC.encode_model(GLOBAL)
PARCEL = Parcel(CODEC.encode_task(TASK, STAMP.run, MODEL), MODEL)
