"""What a round asks of each level, as this machine would do it."""

import time

import pytest
import torch

from dapperfl.errors import RunError
from dapperfl.lab.build import build_on
from dapperfl.lab.rehearsal import BATCHES, ClockedRunner, Part, Rehearsal, rehearse
from dapperfl.lab.world import known_world
from dapperfl.runtime.training import Trained
from dapperfl.sim.simulator import LevelCost


@pytest.fixture
def tried(toy):
    """Rehearse the toy config, with some settings changed."""

    def of(*settings: str, pictures: int = 20) -> Rehearsal:
        config = toy(*settings)
        return rehearse(config, known_world(config), pictures)

    return of


def test_each_level_has_the_costs_of_its_devices_in_a_run(toy):
    config = toy("rounds=2")
    simulator = build_on(config, world := known_world(config))
    *_, last = simulator.rounds()
    (pictures,) = {device.num_samples for device in world.devices}
    found = rehearse(config, world, pictures)
    assert [part.level for part in found.parts] == simulator.levels()
    spent = {device.rho: last.costs[device.id] for device in world.devices}
    assert {part.level.rho: part.spent for part in found.parts} == spent
    assert found.dense == sum(p.numel() for p in simulator.net.parameters())


def test_levels_are_those_of_the_fleet_each_once(tried):
    found = tried("fleet.rhos=[0.8,0.5,0.8]", "fleet.participation=0.1")
    assert [part.level.rho for part in found.parts] == [0.5, 0.8]
    assert all(part.seconds for part in found.parts)


def test_no_more_pictures_are_trained_than_it_takes_to_tell_the_time(toy, monkeypatch):
    trained: list[int] = []
    plain = ClockedRunner._train

    def watched(self: ClockedRunner, work) -> Trained:
        trained.append(work.device.num_samples)
        return plain(self, work)

    monkeypatch.setattr(ClockedRunner, "_train", watched)
    config = toy("train.batch_size=8")
    for pictures, expected in ((5, 5), (100_000, BATCHES * 8)):
        trained.clear()
        rehearse(config, known_world(config), pictures)
        assert set(trained) == {expected}


def test_the_time_is_that_of_the_last_round_in_shares_of_a_picture(tried, monkeypatch):
    ticks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    found = tried(pictures=20)
    assert [part.seconds for part in found.parts] == [10 / 20] * 3


def test_the_largest_net_in_time_is_chosen():
    slow, quick, never = (
        Part(LevelCost(rho, 1, 1, 1, 1), None, seconds)
        for rho, seconds in ((0.0, 0.5), (0.4, 0.1), (0.8, None))
    )
    found = Rehearsal(1, "", (slow, quick, never))
    assert found.largest_within(50, pictures=100) == 0
    assert found.largest_within(49, pictures=100) == 0.4
    assert found.largest_within(10, pictures=100) == 0.4
    assert found.largest_within(9, pictures=100) is None


def test_a_level_that_takes_no_part_has_no_time(tried):
    strong, *weak = tried("method=fedavg_capable").parts
    assert strong.spent is not None
    assert strong.seconds is not None
    assert all(part.spent is None and part.seconds is None for part in weak)


def test_what_stays_full_is_said(tried):
    assert tried().uncut == ""
    assert "log_softmax" in tried("method=fedsr").uncut


def test_a_server_that_has_no_pictures_knows_enough(tried):
    classes = ('deploy.classes=["red","green"]', "deploy.picture=[3,8,8]", "deploy.devices=1")
    assert len(tried(*classes, pictures=2).parts) == 3


def test_other_threads_and_random_numbers_are_left_as_they_were(tried):
    torch.manual_seed(0)
    before = torch.get_num_threads(), torch.rand(1).item()
    torch.manual_seed(0)
    tried()
    assert (torch.get_num_threads(), torch.rand(1).item()) == before


def test_a_device_that_cannot_train_says_why(tried):
    with pytest.raises(RunError, match=r"a device of rho = 0 cannot train: .*on purpose"):
        tried(f"net={__name__}:FailsInTraining", "fleet.rhos=[0]")


class FailsInTraining(torch.nn.Sequential):
    """A net that works until it has to learn from more than a few pictures."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(3 * width * width, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > 4:
            raise RuntimeError("on purpose")
        out: torch.Tensor = super().forward(x)
        return out
