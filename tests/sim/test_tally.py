"""What a round's tally says must not depend on the order in which replies come."""

from itertools import permutations

import pytest
from tests.runtime.letters import SMALL, moments, update

from dapperfl.core.masks import pack
from dapperfl.core.messages import ClientCost, ClientUpdate, Device, LeftOut
from dapperfl.sim.tally import Tally


def reply(device: int, rho: float, loss: float, samples: int, **metrics: float) -> ClientUpdate:
    who = Device(device, "light" if device < 2 else "dark", rho, samples)
    return update(device=who, num_samples=samples, metrics={"loss": loss, **metrics})


REPLIES = [
    reply(0, 0.4, 0.1, 7, tested=10, correct=4, rounding=2e-4),
    reply(1, 0.4, 0.7, 3, tested=30, correct=16, rounding=1e-4),
    reply(2, 0.6, 0.3, 5),
]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_sums_and_masks_do_not_depend_on_the_order(order):
    tally = Tally()
    assert len(list(tally.watch(iter([REPLIES[n] for n in order])))) == 3
    assert tally.loss() == (0.1 * 7 + 0.7 * 3 + 0.3 * 5) / 15
    assert tally.kept() == {0.4: pack(SMALL), 0.6: pack(SMALL)}
    assert tally.on_devices() == {"light": 50.0}  # 20 right answers of 40
    assert tally.rounding == 2e-4


def test_those_left_out_end_there_and_moments_add_to_the_cost():
    tally = Tally()
    gone = LeftOut(Device(9, "light", 0.0, 1), "gone")
    assert list(tally.watch(iter([gone, REPLIES[0]]))) == [REPLIES[0]]
    assert tally.left_out == [gone]
    measured = moments(device=REPLIES[0].device, cost=ClientCost(bytes_up=5))
    list(tally.watch_moments(iter([measured])))
    assert tally.costs[0].bytes_up == REPLIES[0].cost.bytes_up + 5
