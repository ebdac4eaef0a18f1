"""Every method must learn over the wire what it learns in simulation."""

import pytest
import torch
from tests.flower.village import MODULES, Village, assembled, nodes_of, toy

from dapperfl import methods
from dapperfl.core.state import State
from dapperfl.lab.build import build
from dapperfl.sim.simulator import RoundRecord

every_method = pytest.mark.parametrize("name", methods.names())
NET = ("net=resnet10", "net.width=4")
TINY = ("net=tests.tiny:TinyNet",)  # a stem and one block, for methods that do not ask for more


def rounds(tmp_path, *settings: str, backwards: bool = False) -> list[RoundRecord]:
    """Run a config over the wire; replies may become ready from last to first."""
    config = toy(*settings)
    village = Village(nodes_of(config, tmp_path, modules=f"{MODULES},tests.tiny"))
    if backwards:
        village.order = lambda waiting: waiting[::-1]
    return list(assembled(village, config, tmp_path / "run").rounds())


def everything(record: RoundRecord) -> State:
    server = record.snapshot.server
    return server.weights | {f"extra/{name}": tensor for name, tensor in server.extra.items()}


@every_method
def test_it_learns_the_same_as_in_simulation(name, tmp_path):
    net = NET if name in ("dapperfl", "nefl") else TINY
    settings = (*net, f"method={name}", "data.validation=0.2")
    ours = rounds(tmp_path, *settings)
    theirs = list(build(toy(*settings)).rounds())
    assert len(ours) == len(theirs) == 2
    for here, there in zip(ours, theirs, strict=True):
        left, right = everything(here), everything(there)
        assert left.keys() == right.keys()
        for key, tensor in left.items():
            torch.testing.assert_close(tensor, right[key], rtol=0, atol=1e-5)
        assert here.accuracy == pytest.approx(there.accuracy)
        assert here.loss == pytest.approx(there.loss, abs=1e-5)
        assert here.costs.keys() == there.costs.keys()
        assert not here.left_out
        for device, spent in there.costs.items():
            found = here.costs[device]
            assert found.train_flops == spent.train_flops
            assert found.parameters_uploaded == spent.parameters_uploaded
            # A head of less than a kilobyte for each reply, and the terms with each task.
            assert 0 < found.bytes_up - spent.bytes_up < 2 * 1000
            assert 0 < found.bytes_down - spent.bytes_down < 2 * 8000


@pytest.mark.slow  # quickly: the order of replies in tests/contracts/test_methods.py
@every_method
def test_the_order_of_replies_moves_no_weight(name, tmp_path):
    settings = (*NET, f"method={name}", "rounds=1", "train.epochs=1")
    (forwards,) = rounds(tmp_path / "one", *settings)
    (backwards,) = rounds(tmp_path / "other", *settings, backwards=True)
    weights = backwards.snapshot.server.weights
    for key, tensor in forwards.snapshot.server.weights.items():
        assert torch.equal(tensor, weights[key]), key
    assert (forwards.loss, forwards.kept) == (backwards.loss, backwards.kept)
    assert list(forwards.costs) == list(backwards.costs) == sorted(forwards.costs)


def test_updates_in_16_bits_come_close(tmp_path):
    exact = rounds(tmp_path / "one", *NET, "rounds=1")[0]
    rough = rounds(tmp_path / "two", *NET, "rounds=1", "deploy.fp16=true")[0]
    for device, spent in exact.costs.items():
        assert rough.costs[device].bytes_up < 0.7 * spent.bytes_up
    ours, theirs = exact.snapshot.server.weights, rough.snapshot.server.weights
    parameters = [key for key in ours if "running" not in key and ours[key].is_floating_point()]
    for key in parameters:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=1e-3)
    assert any(not torch.equal(ours[key], theirs[key]) for key in parameters)
