import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.tiny import tiny_examples, tiny_federation, tiny_net

from dapperfl.core.cost import cost
from dapperfl.core.messages import LocalModel, Moments, Report, ServerState, StatisticsTask
from dapperfl.core.state import State
from dapperfl.core.styles import OWN, style_of
from dapperfl.data.batches import Batches
from dapperfl.errors import BudgetError, ConfigError, RunError
from dapperfl.methods.base import Method, Statistics
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.methods.fedavg_small import FedAvgSmall
from dapperfl.methods.heterofl import HeteroFL
from dapperfl.methods.nefl import NeFL
from dapperfl.runtime.calibration import calibrate
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.statistics import recalibrate
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.loop import LoopRunner
from dapperfl.sim.simulator import RoundRecord, Simulator

TRAIN = TrainSettings(epochs=2, batch_size=4, lr=0.05)
MEASURING = DapperFL(scope="all", dense="full", bn_statistics="recalibrate", recalibrate_rounds=0)


def simulator(method: Method | None = None, **changes: Any) -> Simulator:
    settings = {"federation": tiny_federation(), "train": TRAIN, "rounds": 3, **changes}
    return Simulator(method=method or DapperFL(scope="all"), net=tiny_net(), **settings)


def assert_same(ours: RoundRecord, theirs: RoundRecord) -> None:
    assert ours.accuracy == theirs.accuracy
    assert_same_weights(ours, theirs)


def assert_same_weights(ours: RoundRecord, theirs: RoundRecord) -> None:
    first, second = ours.snapshot.server.weights, theirs.snapshot.server.weights
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_training_learns():
    world = simulator(FedAvg(), rounds=12, federation=tiny_federation(samples=30))
    records = list(world.rounds())
    assert records[-1].mean_accuracy > 80
    assert records[-1].loss < 0.5 * records[0].loss
    assert [record.round_num for record in records] == list(range(1, 13))


@pytest.mark.parametrize("method", [HeteroFL(), NeFL()])
def test_accuracy_is_that_of_the_largest_net_that_is_trained(method):
    world = simulator(method, federation=tiny_federation(rhos=(0.5, 0.7)))
    *_, last = world.rounds()
    compact = world.delivered(last.snapshot.server)
    assert compact.submodel.kept
    assert last.accuracy == world.evaluate(compact)
    taken = world.compact(last.snapshot.server, 0.5)
    assert taken.submodel.to_lists() == compact.submodel.to_lists()


@pytest.mark.parametrize("preset", ["default", "paper", "release"])
def test_the_same_seed_gives_the_same_run(preset):
    first, second = (list(simulator(DapperFL.from_preset(preset)).rounds()) for _ in range(2))
    for ours, theirs in zip(first, second, strict=True):
        assert_same(ours, theirs)
    other = list(simulator(DapperFL.from_preset(preset), seed=1).rounds())
    assert other[-1].loss != first[-1].loss


@dataclass(frozen=True, kw_only=True)
class Remembering(FedAvg):
    """Counts, on each client, the rounds it has seen; the count scales its loss."""

    def loss(self, net, batch, work):
        return super().loss(net, batch, work) / (1 + work.memory.get("seen", torch.tensor(0.0)))

    def report(self, net, batches, work):
        return Report(memory={"seen": work.memory.get("seen", torch.tensor(0.0)) + 1})


@pytest.mark.parametrize(
    "method", [DapperFL(), MEASURING, DapperFL.from_preset("paper"), Remembering()]
)
@pytest.mark.parametrize("after", [1, 2])
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(method, after):
    whole = list(simulator(method, participation=0.7).rounds())
    resumed = list(simulator(method, participation=0.7).rounds(whole[after - 1].snapshot))
    assert [r.round_num for r in resumed] == [r.round_num for r in whole[after:]]
    assert_same(resumed[-1], whole[-1])


def test_client_memory_reaches_the_client_again_and_only_that_client():
    records = list(simulator(Remembering(), participation=0.7).rounds())
    seen = {
        client: memory["seen"].item() for client, memory in records[-1].snapshot.memories.items()
    }
    took_part = [client for record in records for client in record.costs]
    assert seen == {client: took_part.count(client) for client in set(took_part)}


def test_participation_draws_a_part_of_the_fleet_anew_each_round():
    world = simulator(participation=0.4, federation=tiny_federation((0.0,) * 10), rounds=1)
    cohorts = [tuple(device.id for device in world.cohort(t)) for t in range(1, 30)]
    assert {len(cohort) for cohort in cohorts} == {4}
    assert len(set(cohorts)) > 10
    assert set().union(*cohorts) == set(range(10))
    assert all(list(cohort) == sorted(cohort) for cohort in cohorts)


@dataclass(frozen=True, kw_only=True)
class Failing(FedAvg):
    """Fails on some devices: with an exception, or with a loss that is not finite."""

    broken: tuple[int, ...] = (1,)
    loss_is_nan: bool = False
    from_round: int = 1

    def loss(self, net, batch, work):
        if work.device.id in self.broken and work.round_num >= self.from_round:
            if self.loss_is_nan:
                return super().loss(net, batch, work) * math.nan
            raise ConnectionError("the battery is empty")
        return super().loss(net, batch, work)


@pytest.mark.parametrize(("nan", "reason"), [(False, "battery is empty"), (True, "loss is nan")])
def test_a_client_that_fails_is_left_out_and_the_round_goes_on(nan, reason, caplog):
    with caplog.at_level(logging.WARNING):
        records = list(simulator(Failing(loss_is_nan=nan)).rounds())
    assert len(records) == 3
    assert [(out.device.id, reason in out.reason) for out in records[0].left_out] == [(1, True)]
    assert sorted(records[0].costs) == [0, 2]
    assert "device 1 is left out" in caplog.text
    without = simulator(FedAvg(), federation=without_device(1))
    assert_same(records[-1], list(without.rounds())[-1])


@dataclass(frozen=True, kw_only=True)
class TooLarge(FedAvg):
    """Needs more memory than the machine has."""

    def loss(self, net, batch, work):
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("runner", [LoopRunner, GraphRunner])
def test_a_machine_without_memory_is_no_reason_to_leave_a_client_out(runner):
    with pytest.raises(torch.OutOfMemoryError):
        list(simulator(TooLarge(), runner=runner).rounds())


def without_device(gone: int) -> Any:
    world = tiny_federation()
    devices = tuple(device for device in world.devices if device.id != gone)
    return replace(world, devices=devices)


def test_a_round_without_anyone_keeps_the_global_model():
    world = simulator(Failing(broken=(0, 1, 2), from_round=2), rounds=2)
    first, second = world.rounds()
    before, after = first.snapshot.server, second.snapshot.server
    assert after.round_num == 2
    assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert len(second.left_out) == 3
    assert math.isnan(second.loss)


@dataclass(frozen=True, kw_only=True)
class Standing(FedAvg):
    """Forgets to say that a round is over, or to return anything at all."""

    silent: bool = False

    def update(self, server, updates):
        after = super().update(server, updates)
        return None if self.silent else replace(server, model=after.model)


@pytest.mark.parametrize(("silent", "found"), [(False, "that of round 0"), (True, "None")])
def test_a_method_that_does_not_advance_is_told_instead_of_running_for_ever(silent, found):
    rounds = simulator(Standing(silent=silent)).rounds()
    told = rf"Standing\.update must return the state of round 1, .*, not {found}"
    with pytest.raises(RunError, match=told):
        next(rounds)


def test_three_rounds_without_anyone_end_the_run():
    world = simulator(Failing(broken=(0, 1, 2), from_round=2), rounds=9)
    records = world.rounds()
    assert [next(records).round_num for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(
        RunError, match=r"nobody took part in 3 rounds in a row.*the battery is empty"
    ):
        next(records)


@pytest.mark.parametrize(("rounds", "told"), [(1, "1 round, so"), (2, "2 rounds in a row, so")])
def test_a_short_run_without_anyone_has_failed(rounds: int, told: str):
    records = simulator(Failing(broken=(0, 1, 2), from_round=1), rounds=rounds).rounds()
    assert len([next(records) for _ in range(rounds)]) == rounds
    with pytest.raises(RunError, match=f"nobody took part in {told}.*the battery is empty"):
        next(records)


def test_a_run_that_failed_in_its_last_round_fails_again_when_it_is_continued():
    world = simulator(Failing(broken=(0, 1, 2), from_round=1), rounds=3)
    records = world.rounds()
    last = [next(records) for _ in range(3)][-1].snapshot
    with pytest.raises(RunError, match="the battery is empty"):
        next(records)
    with pytest.raises(RunError, match=r"after round 3 \(ask for more rounds to try again"):
        next(world.rounds(last))
    more = simulator(Failing(broken=(), from_round=1), rounds=4)
    assert [record.round_num for record in more.rounds(last)] == [4]


def test_with_fewer_replies_than_asked_for_the_model_stays_and_the_run_may_end():
    world = simulator(Failing(broken=(1,), from_round=2), rounds=9, min_replies=3)
    running = world.rounds()
    records = [next(running) for _ in range(4)]
    with pytest.raises(RunError, match=r"fewer than 3 devices took part in 3 rounds in a row"):
        next(running)
    first, second, *_ = (record.snapshot.server for record in records)
    assert all(torch.equal(t, second.weights[name]) for name, t in first.weights.items())
    start = world.start().server.weights
    assert any(not torch.equal(t, start[name]) for name, t in first.weights.items())
    assert [record.snapshot.empty_rounds for record in records] == [0, 1, 2, 3]
    assert list(records[1].costs) == [0, 2]  # they have worked all the same


def test_a_world_without_any_picture_has_the_same_net():
    federation = tiny_federation()
    blind = replace(federation, train={}, test={}, picture=(3, 6, 6))
    assert federation.shape == blind.shape == (3, 6, 6)
    assert replace(federation, train={}).shape == (3, 6, 6)
    graph = simulator(federation=blind).graph
    assert graph.shapes == simulator().graph.shapes
    assert simulator(federation=blind).measured == {"light": 0.0, "dark": 0.0}


def test_rounds_in_which_the_method_asks_nobody_do_not_end_the_run():
    @dataclass(frozen=True, kw_only=True)
    class Picky(FedAvg):
        def assign(self, server, device, epochs, dice):
            wanted = server.round_num in (0, 5)
            return super().assign(server, device, epochs, dice) if wanted else None

    records = list(simulator(Picky(), rounds=6).rounds())
    assert [len(record.costs) for record in records] == [3, 0, 0, 0, 0, 3]


def test_the_count_of_empty_rounds_survives_a_resume():
    world = simulator(Failing(broken=(0, 1, 2)), rounds=9)
    first = next(world.rounds())
    assert first.snapshot.empty_rounds == 1
    with pytest.raises(RunError, match="after round 3"):
        list(world.rounds(first.snapshot))


def test_a_budget_that_cannot_be_met_is_said_before_the_first_round():
    world = simulator(DapperFL(scope="inner"), federation=tiny_federation((0.0, 0.9)))
    with pytest.raises(BudgetError, match="smallest submodel"):
        next(world.rounds())


def test_levels_are_counted_on_the_shrunk_nets():
    world = simulator(DapperFL(scope="all"))
    full = cost(world.graph.full())
    levels = world.levels()
    assert [level.rho for level in levels] == [0.0, 0.4, 0.6]
    assert levels[0].parameters == full.parameters
    for level in levels:
        assert level.parameters <= (1 - level.rho) * full.parameters
        assert level.upload_bytes < (1 - level.rho + 0.05) * full.upload_bytes


def test_costs_of_the_statistics_phase_are_counted():
    plain = next(simulator(replace(MEASURING, bn_statistics="average")).rounds())
    measured = next(simulator(MEASURING).rounds())
    full = cost(simulator().graph.full())
    for client, spent in measured.costs.items():
        samples = tiny_federation().devices[client].num_samples
        extra = spent.train_flops - plain.costs[client].train_flops
        assert extra == 2 * full.macs * samples
        assert spent.bytes_down == plain.costs[client].bytes_down + full.upload_bytes
        assert spent.bytes_up > plain.costs[client].bytes_up


def test_who_never_holds_the_whole_net_measures_in_its_own():
    method = DapperFL(scope="all", bn_statistics="recalibrate", recalibrate_rounds=0)
    plain = next(simulator(replace(method, bn_statistics="average")).rounds())
    measured = next(simulator(method).rounds())
    prices = {level.rho: level for level in simulator(method).levels()}
    for client, spent in measured.costs.items():
        device = tiny_federation().devices[client]
        extra = spent.train_flops - plain.costs[client].train_flops
        assert extra == 2 * prices[device.rho].macs * device.num_samples
        assert spent.peak_parameters == prices[device.rho].parameters
    before, after = (each.snapshot.server.smooth().weights for each in (plain, measured))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.endswith(("running_mean", "running_var")) for name in moved)


@pytest.mark.parametrize(
    "method",
    [FedAvg(), FedAvgSmall(multiple=1), DapperFL(dense="full", recalibrate_rounds=0)],
    ids=str,
)
def test_statistics_are_those_of_the_running_mean_and_training_does_not_see_them(method):
    method = replace(method, averaging=1.0, weight_power=0.5)
    world = simulator(replace(method, bn_statistics="recalibrate"))
    *_, plain = simulator(method).rounds()
    *_, last = world.rounds()
    assert_same_weights(last, plain)
    server = last.snapshot.server
    shown = world.delivered(server)
    tasks = [StatisticsTask(3, device, shown) for device in world.federation.devices]
    found = [each for each in world.runner.statistics(tasks) if isinstance(each, Moments)]
    assert len(found) == len(tasks)
    wanted = recalibrate(ServerState(3, shown, ()), found, power=0.5).weights  # in the same net
    before = simulator(method).delivered(plain.snapshot.server).weights
    for name, tensor in shown.weights.items():
        assert torch.equal(tensor, wanted[name]), name
        assert torch.equal(tensor, before[name]) != ("running_" in name), name


@pytest.mark.parametrize("dense", ["full", "never"])
def test_statistics_are_measured_in_the_first_rounds_and_training_goes_on_as_without(dense):
    method = DapperFL(scope="all", dense=dense, recalibrate_rounds=2)
    early = list(simulator(method, rounds=4).rounds())
    always = list(simulator(replace(method, bn_statistics="recalibrate"), rounds=4).rounds())
    never = list(simulator(replace(method, recalibrate_rounds=0), rounds=4).rounds())
    for ours, theirs in zip(early, never, strict=True):
        assert_same_weights(ours, theirs)  # of what devices train on from
    spent = [[record.costs for record in run] for run in (early, always, never)]
    assert spent[0] == [*spent[1][:2], *spent[2][2:]]
    assert spent[1] != spent[2]
    shown = [[record.snapshot.server.smooth().weights for record in run] for run in (early, always)]
    for name, tensor in shown[0][1].items():
        assert torch.equal(tensor, shown[1][1][name]), name
    assert any(not torch.equal(t, shown[1][3][n]) for n, t in shown[0][3].items())


def test_small_nets_of_the_first_rounds_are_measured_too():
    world = simulator(DapperFL(scope="all", recalibrate_rounds=1), rounds=2)
    first, second = (each.snapshot.server for each in world.rounds())
    for server, measured in ((first, True), (second, False)):
        cut = world.method.take_home(server.smooth(), 0.6).weights
        home = world.compact(server, 0.6).weights
        moved = {name for name, tensor in cut.items() if not torch.equal(tensor, home[name])}
        assert bool(moved) is measured
        assert all("running_" in name for name in moved)


def test_a_net_without_statistics_has_no_statistics_phase():
    def spent(statistics: Statistics) -> int:
        method = replace(MEASURING, bn_statistics=statistics)
        world = Simulator(
            method=method, net=tiny_net(norm=False), federation=tiny_federation(), train=TRAIN
        )
        return sum(cost.train_flops for cost in next(world.rounds()).costs.values())

    assert spent("recalibrate") == spent("average")


def test_compact_models_are_small_and_run():
    world = simulator(DapperFL(scope="all"))
    *_, last = world.rounds()
    model = world.compact(last.snapshot.server, 0.6)
    assert isinstance(model, LocalModel)
    small = model.submodel.shrink(world.net)
    small.load_state_dict(model.weights)
    assert small(torch.randn(2, 3, 6, 6)).shape == (2, 3)
    assert sum(p.numel() for p in small.parameters()) <= 0.4 * cost(world.graph.full()).parameters


@pytest.mark.parametrize(("participation", "asked"), [(1.0, 8), (0.5, 4), (0.01, 1)])
def test_compact_models_ask_no_more_devices_than_a_round_does(participation, asked):
    fleet = tiny_federation((0.0, *(0.4,) * 8))
    world = simulator(MEASURING, federation=fleet, participation=participation)
    world.compact(world.start().server, 0.4)
    assert len(world.data.held) == min(asked, 2 * world.cohort_size)


def test_recalibrated_statistics_are_those_of_the_data():
    """With one client and one batch the global statistics are that batch's own."""
    world = simulator(
        MEASURING,
        federation=tiny_federation((0.0,), samples=12),
        train=TrainSettings(epochs=1, batch_size=12, lr=0.01),
        rounds=1,
    )
    (record,) = world.rounds()
    weights: State = record.snapshot.server.smooth().weights
    net = tiny_net()
    net.load_state_dict(weights)
    batch = next(world.data[0].clean())
    seen = net.conv1(torch.relu(net.stem(batch.x)))
    assert torch.allclose(weights["bn1.running_mean"], seen.mean((0, 2, 3)), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rounds": 0}, "rounds must be"), ({"participation": 0.0}, "participation must be")],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        simulator(**changes)


def test_what_devices_keep_aside_is_evaluated_by_domain_and_changes_no_training():
    world = tiny_federation()
    aside = {0: tiny_examples(6, "aside", 0), 2: tiny_examples(9, "aside", 2)}
    plain = list(simulator(federation=world).rounds())
    watched = simulator(federation=replace(world, validation=aside))
    records = list(watched.rounds())
    assert_same(records[-1], plain[-1])
    assert plain[-1].validation == {}
    assert records[-1].validation.keys() == {"light"}  # devices 0 and 2
    model = records[-1].snapshot.server.model
    net = model.submodel.shrink(watched.net).eval()
    net.load_state_dict(model.weights)
    batches = [next(Batches(e, 99, world.mean, world.std).clean()) for e in aside.values()]
    right = sum(int((net(b.x).argmax(1) == b.y).sum()) for b in batches)
    assert records[-1].validation["light"] == pytest.approx(100 * right / 15)


def test_examples_are_only_read():
    world = tiny_federation()
    list(simulator(federation=world, rounds=1).rounds())
    assert torch.equal(world.train[0].images, tiny_examples(12, "train", 0).images)


def test_who_never_holds_the_whole_net_does_not_measure_it_either():
    method = DapperFL(dense="never", multiple=1, recalibrate_rounds=0)
    world = simulator(method=method, federation=tiny_federation((0.0, 0.4, 0.6)), rounds=1)
    level = {each.rho: each for each in world.levels()}
    [record] = world.rounds()
    for device in world.federation.devices:
        spent, allowed = record.costs[device.id], level[device.rho]
        assert spent.peak_parameters == allowed.parameters
        steps = world.train.epochs * device.num_samples  # and no statistics phase
        assert spent.train_flops == steps * allowed.train_flops


def test_the_model_handed_out_is_a_running_mean_and_training_does_not_see_it():
    plain, smooth = simulator(FedAvg()), simulator(FedAvg(averaging=1.0))
    before = [record.snapshot.server.weights for record in plain.rounds()]
    *_, last = smooth.rounds()
    server = last.snapshot.server
    for name, tensor in server.weights.items():
        assert torch.equal(tensor, before[-1][name])
        if tensor.is_floating_point():
            mean = torch.stack([weights[name] for weights in before]).mean(0)
            assert torch.allclose(smooth.delivered(server).weights[name], mean, atol=1e-6)
            assert torch.equal(smooth.compact(server, 0.0).weights[name], server.mean[name])
    assert last.accuracy == smooth.evaluate(LocalModel(server.mean, server.model.submodel))


def test_styles_of_the_last_round_reach_every_device_and_change_its_training():
    plain, styled = simulator(FedAvg()), simulator(FedAvg(restyle=0.5))
    theirs, ours = list(plain.rounds()), list(styled.rounds())
    assert_same(ours[0], theirs[0])  # nobody knows anything of the others yet
    first, last = (record.snapshot.server for record in (ours[0], ours[-1]))
    stem = "stem.weight"
    assert not torch.equal(last.weights[stem], theirs[-1].snapshot.server.weights[stem])
    for device in styled.federation.devices:
        own = style_of(styled.data[device.id].clean())[OWN]
        assert torch.allclose(first.styles["rows"][device.id], own, atol=1e-5)
    size, share = 4 * 4 * 3, 4  # bytes of a style, and of how much is to be restyled
    for client, spent in ours[1].costs.items():
        before = theirs[1].costs[client]
        assert spent.bytes_up - before.bytes_up == size
        told = size * len(styled.federation.devices) + share
        assert spent.bytes_down - before.bytes_down == told
        assert spent.train_flops == before.train_flops


def test_a_round_with_too_few_replies_brings_no_styles():
    world = simulator(FedAvg(restyle=0.5), min_replies=99, rounds=1)
    [record] = world.rounds()
    assert record.snapshot.server.styles == {}


def at_home(world: Simulator) -> tuple[dict[int, float], dict[float, LocalModel]]:
    server = list(world.rounds())[-1].snapshot.server
    compact = {rho: world.compact(server, rho) for rho in (0.0, 0.4, 0.6)}
    return world.at_home(compact), compact


@pytest.mark.parametrize("runner", [LoopRunner, GraphRunner])
def test_devices_calibrate_what_they_take_home(runner):
    world = simulator(runner=runner)
    found, compact = at_home(world)
    assert list(found) == [0, 1, 2]
    for device in world.federation.devices:
        model = compact[device.rho]
        net = model.submodel.shrink(world.net)
        net.load_state_dict(model.weights)
        own = calibrate(net, next(world.data[device.id].clean(100)).x)
        right = world.evaluate(LocalModel(own.state_dict(), model.submodel))
        assert found[device.id] == right[device.domain]


def test_whoever_has_no_pictures_or_no_test_set_is_not_at_home():
    whole = tiny_federation()
    first, *others = whole.devices
    strange = replace(whole, devices=(replace(first, domain="mixed"), *others))
    assert list(at_home(simulator(federation=strange))[0]) == [1, 2]
    world = simulator(participation=0.67)
    assert len(at_home(world)[0]) == 2  # of ten thousand devices, a cohort must do
    compact = {rho: world.compact(world.start().server, rho) for rho in (0.0, 0.4, 0.6)}
    world.data.examples = {}
    assert world.at_home(compact) == {}


def test_one_picture_says_nothing_about_what_pictures_look_like():
    whole = tiny_federation()
    lonely = replace(whole, train={**whole.train, 0: tiny_examples(1)})
    world = simulator(FedAvg(), federation=lonely)
    model = LocalModel(world.start().server.weights, world.graph.full())
    domain = whole.devices[0].domain
    assert world.at_home(dict.fromkeys((0.0, 0.4, 0.6), model))[0] == world.evaluate(model)[domain]
