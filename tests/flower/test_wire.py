"""What goes over the wire, byte by byte: no picture, each model once, one reply at a time."""

import gc
from collections import Counter

import torch
from tests.flower.village import (
    Node,
    Village,
    assembled,
    nodes_of,
    serve_in,
    toy,
    training_replies,
)
from tests.runtime.letters import closed
from tests.runtime.letters import opened as taken_apart

from dapperfl.core.cost import cost
from dapperfl.core.messages import ClientUpdate
from dapperfl.flower.letters import RECORD
from dapperfl.lab.build import load_federation
from dapperfl.lab.records import load_records


def test_no_picture_and_no_path_leaves_a_device(tmp_path):
    config = toy("data.validation=0.2", "method=fpl")
    village = Village(nodes_of(config, tmp_path))
    serve_in(village, config, tmp_path / "run")
    sent = b"\n".join(village.wire.values())
    assert len(sent) > 10_000
    world = load_federation(config)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (world.mean, world.std))
    held = [*world.train.values(), *world.validation.values()]
    pictures = [image for examples in held for image in examples.images]
    assert len(pictures) > 50
    for image in pictures:
        assert image.numpy().tobytes() not in sent
        assert image[0].numpy().tobytes() not in sent  # one channel
        floats = image.div(255).sub(mean).div(std)
        assert floats[0, :2].contiguous().numpy().tobytes() not in sent  # two lines of it
        assert (image[0, :2] / 255).numpy().tobytes() not in sent
    assert str(tmp_path).encode() not in sent


def test_the_model_of_a_round_is_the_same_object_for_all(tmp_path):
    config = toy("method=fedavg", "fleet.devices=3")
    village = Village(nodes_of(config, tmp_path))
    simulator = assembled(village, config, tmp_path / "run")
    list(simulator.rounds())
    size = cost(simulator.graph.full()).upload_bytes
    tasks = [each for each in village.pushed if each.metadata.message_type == "train"]
    assert len(tasks) == 6
    models = Counter(each.content.array_records[RECORD]["model"].object_id for each in tasks)
    assert sorted(models.values()) == [3, 3]
    # On the wire, where equal objects go once: three updates a round, and one model.
    assert len([data for data in village.wire.values() if len(data) >= size]) == 2 * (3 + 1)


def test_levels_that_get_different_models_get_each_once(tmp_path):
    config = toy("method=heterofl", "rounds=1", "fleet.devices=4", "fleet.rhos=[0,0.5]")
    village = Village(nodes_of(config, tmp_path))
    list(assembled(village, config, tmp_path / "run").rounds())
    tasks = [each for each in village.pushed if each.metadata.message_type == "train"]
    models = Counter(each.content.array_records[RECORD]["model"].object_id for each in tasks)
    assert sorted(models.values()) == [2, 2]


def test_one_reply_is_in_memory_at_a_time(tmp_path):
    config = toy("method=fedavg", "fleet.devices=6")
    village = Village(nodes_of(config, tmp_path))
    simulator = assembled(village, config, tmp_path / "run")
    most: list[tuple[int, int]] = []

    def updates() -> int:
        gc.collect()
        return sum(type(each) is ClientUpdate for each in gc.get_objects())

    before = updates()  # other tests have some of their own
    village.before_pull = lambda: most.append((len(village.alive), updates() - before))
    list(simulator.rounds())
    assert len(most) >= 12
    # No message is left when the next is fetched, and of what was in them only the last.
    assert max(messages for messages, _ in most) == 0
    assert max(updates for _, updates in most) == 1


def test_bytes_up_are_those_of_the_submodel_plus_little(tmp_path):
    config = toy("method=dapperfl", "net=resnet10", "net.width=16", "rounds=1", "train.epochs=1")
    village = Village(nodes_of(config, tmp_path))
    simulator = assembled(village, config, tmp_path / "run")
    sizes: dict[int, int] = {}
    train = simulator.runner.train

    def watched(work):
        for reply in train(work):
            if isinstance(reply, ClientUpdate):
                sizes[reply.device.id] = cost(reply.model.submodel).upload_bytes
                assert reply.cost.bytes_up / sizes[reply.device.id] - 1 < 0.02
            yield reply

    simulator.runner.train = watched  # type: ignore[method-assign]
    list(simulator.rounds())
    assert len(set(sizes.values())) == 3  # three levels


def test_updates_in_16_bits_are_half_as_large_and_what_they_lose_is_in_the_records(tmp_path):
    found = {}
    for fp16 in (False, True):
        config = toy("method=fedavg", "net.width=16", f"deploy.fp16={str(fp16).lower()}")
        village = Village(nodes_of(config, tmp_path / f"{fp16}"))
        serve_in(village, config, tmp_path / f"run-{fp16}")
        found[fp16] = load_records(tmp_path / f"run-{fp16}")
    for exact, short in zip(found[False], found[True], strict=True):
        assert exact.rounding is None
        assert short.rounding is not None
        assert 0 < short.rounding < 2**-11  # half a unit in the last of eleven places
        for device, spent in exact.costs.items():
            assert short.costs[device].bytes_up < 0.56 * spent.bytes_up


def test_no_device_weighs_more_or_spoils_a_figure_by_what_it_claims(tmp_path):
    def claims(node: Node, data: bytes) -> bytes:
        facts, tensors = taken_apart(data)
        changes: dict[int, dict[str, object]] = {
            0: {"metrics": facts["metrics"] | {"rounding": 1e11}},
            1: {"num_samples": 5_000_000},
            2: {"metrics": facts["metrics"] | {"loss": 1e308}},
        }
        return closed(facts | changes[int(node.settings["device-id"])], tensors)

    config = toy("method=fedavg", "rounds=1")
    nodes = nodes_of(config, tmp_path)
    for node in nodes:
        node.twist = training_replies(claims)
    serve_in(Village(nodes), config, tmp_path / "run")
    (line,) = load_records(tmp_path / "run")
    reasons = {each.id: each.reason for each in line.left_out}
    assert reasons.keys() == {1, 2}
    assert reasons[1].startswith("refused: 5000000 samples are claimed, the device has ")
    assert reasons[2] == 'refused: the metric "loss" is 1e+308'
    assert line.loss is not None
    assert line.rounding is None
