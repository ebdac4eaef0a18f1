from collections.abc import Callable

import pytest
import torch
from tests.tiny import tiny_examples, tiny_graph, tiny_net
from torch import Tensor, nn

from dapperfl.core.messages import LocalModel
from dapperfl.core.state import snapshot
from dapperfl.data.batches import Batches
from dapperfl.data.benchmark import Examples
from dapperfl.runtime.calibration import calibrate
from dapperfl.runtime.frozen import FrozenNets
from dapperfl.sim.judging import Judge

GRAPH = tiny_graph()
MODEL = LocalModel(snapshot(tiny_net()), GRAPH.full())
LIGHT, DARK = tiny_examples(30, "light"), tiny_examples(20, "dark")


def batches(examples: Examples, batch_size: int = 7) -> Batches:
    return Batches(examples, batch_size=batch_size, mean=(0.5,) * 3, std=(0.25,) * 3)


def judge(runs: list[nn.Module] | None = None) -> Judge:
    def running(net: nn.Module) -> Callable[[Tensor], Tensor]:
        if runs is not None:
            runs.append(net)
        return net

    aside = {"dark": batches(DARK)}
    return Judge(FrozenNets(tiny_net(seed=9)), running, {"light": batches(LIGHT)}, aside)


def right(net: nn.Module, examples: Examples) -> float:
    batch = next(batches(examples, 100).clean())
    with torch.no_grad():
        return 100 * float((net.eval()(batch.x).argmax(1) == batch.y).float().mean())


def test_accuracy_is_the_share_of_right_answers_whatever_the_batches():
    seen: list[nn.Module] = []
    ours = judge(seen)
    assert ours.on(ours.test, MODEL) == {"light": pytest.approx(right(tiny_net(), LIGHT))}
    assert ours.on(ours.aside, MODEL) == {"dark": pytest.approx(right(tiny_net(), DARK))}
    assert len(seen) == 2  # what runs the nets is the runner's business
    assert ours.on({}, MODEL) == {}


def test_at_home_a_net_is_calibrated_to_own_pictures_and_the_model_stays():
    own = tiny_examples(12, "own")
    before = snapshot(tiny_net())
    wanted = right(calibrate(tiny_net(), next(batches(own, 100).clean()).x), LIGHT)
    assert judge().at_home(MODEL, batches(own), "light") == pytest.approx(wanted)
    assert all(torch.equal(MODEL.weights[name], tensor) for name, tensor in before.items())


def test_a_single_picture_has_no_spread_to_calibrate_to():
    alone = batches(tiny_examples(1, "own"))
    assert judge().at_home(MODEL, alone, "light") == pytest.approx(right(tiny_net(), LIGHT))
