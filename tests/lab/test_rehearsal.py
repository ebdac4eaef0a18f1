"""What a round asks of each level, as this machine would do it."""

import time
from dataclasses import replace

import pytest
import torch

from dapperfl.core.messages import ClientCost, LocalModel
from dapperfl.core.scores import ordered_scores
from dapperfl.errors import RunError
from dapperfl.lab.build import build_on
from dapperfl.lab.rehearsal import (
    BATCHES,
    MORE_ROUNDS,
    PICTURES,
    ROUNDS,
    ClockedRunner,
    Part,
    Rehearsal,
    _longest,
    rehearse,
)
from dapperfl.lab.world import known_world
from dapperfl.methods.fedavg import FedAvg
from dapperfl.methods.heterofl import HeteroFL
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
    cases = ((8, 5, 5), (8, 100_000, PICTURES), (2, 10**9, PICTURES), (50, 10**9, BATCHES * 50))
    for batch, pictures, expected in cases:
        config = toy(f"train.batch_size={batch}", "train.epochs=1", "fleet.rhos=[0.8]")
        trained.clear()
        rehearse(config, known_world(config), pictures)
        assert set(trained) == {expected}


def test_the_time_is_that_of_the_last_round_in_shares_of_a_picture(tried, monkeypatch):
    ticks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    found = tried(pictures=20)
    assert [part.seconds for part in found.parts] == [10 / 20] * 3


class Scripted(HeteroFL):
    """Hands out the net of the level that stands in a list for the round; None: nobody trains."""

    def script(self) -> tuple[float | None, ...]:
        raise NotImplementedError

    def assign(self, server, device, epochs, dice):
        rhos = self.script()
        rho = rhos[min(server.round_num, len(rhos) - 1)]
        if rho is None:
            return None
        work = super().assign(server, replace(device, rho=rho), epochs, dice)
        assert work is not None
        return replace(work, device=device)


class LargestFirst(Scripted):
    def script(self):
        return (0.5, 0.8)


class LargestThird(Scripted):
    def script(self):
        return (0.8, 0.8, 0.5, 0.8)


class OnlySecond(Scripted):
    def script(self):
        return (None, 0.5, None)


class Nobody(FedAvg):
    def assign(self, server, device, epochs, dice):
        return None


class CutsLater(FedAvg):
    """Hands out the whole net always, which devices cut in the second round."""

    def after_epoch(self, epoch, local, work):
        if work.round_num < 2 or local.submodel.kept:
            return local
        kept = ordered_scores(local.submodel.graph).top(0.5, scope="all", multiple=1)
        return LocalModel(kept.slice(local.weights), kept)


@pytest.mark.parametrize("method", ["LargestFirst", "LargestThird", "OnlySecond"])
def test_nets_that_change_from_round_to_round_are_shown_at_their_largest(tried, method):
    [same] = tried("method=heterofl", "fleet.rhos=[0.5]").parts
    found = tried(f"method={__name__}:{method}", "fleet.rhos=[0.5]")
    assert found.redraws
    assert found.rounds == MORE_ROUNDS
    assert found.parts[0].spent == same.spent
    assert found.parts[0].seconds is not None


def test_draws_are_found_even_if_the_first_are_alike(toy):
    for seed in range(6):  # two rounds of one device draw its own level twice now and then
        settings = ("method=nefl", "method.preset=official", "fleet.rhos=[0.8]", "train.epochs=1")
        config = toy(*settings, f"seed={seed}")
        found = rehearse(config, known_world(config), 5)
        assert found.redraws


def test_nets_that_devices_cut_otherwise_in_another_round_are_found(tried):
    found = tried(f"method={__name__}:CutsLater", "fleet.rhos=[0.5]")
    assert found.redraws
    assert found.parts[0].spent is not None
    assert found.parts[0].spent.parameters_trained == found.dense


@pytest.mark.parametrize("method", ["dapperfl", "feddrop", "fedrolex", "fedmp", "nefl"])
def test_nets_of_one_size_in_all_rounds_take_two(tried, method):
    found = tried(f"method={method}")
    assert not found.redraws
    assert found.rounds == ROUNDS


def test_the_first_time_counts_only_if_no_later_net_was_as_large():
    small, large = ClientCost(peak_parameters=1), ClientCost(peak_parameters=2)
    assert _longest([(small, 9.0)]) == 9
    assert _longest([(small, 9.0), (small, 3.0), (small, 4.0)]) == 4
    assert _longest([(small, 9.0), (large, 3.0), (small, 4.0)]) == 4
    assert _longest([(large, 9.0), (small, 3.0)]) == 9
    assert _longest([(large, 2.0), (small, 3.0)]) == 3


def test_a_method_that_asks_nobody_leaves_every_level_without_a_time(tried):
    found = tried(f"method={__name__}:Nobody")
    assert not found.redraws
    assert all(part.spent is None and part.seconds is None for part in found.parts)


@pytest.mark.parametrize(
    ("settings", "shrinks"),
    [
        (("method=dapperfl", "fleet.rhos=[0]"), True),
        (("method=heterofl",), True),
        (("method=feddrop", "method.preset=release"), False),
        (("method=fedavg",), False),
        (("method=fedavg_capable",), False),
        (("method=fedprox",), False),
    ],
)
def test_whether_weaker_levels_have_smaller_nets_is_known(tried, settings, shrinks):
    assert tried(*settings, pictures=4).shrinks == shrinks


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
