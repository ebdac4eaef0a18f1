"""What every method must keep, whatever it does; a new file in methods/ is tried by itself."""

import math
from typing import Any

import pytest
from tests.contracts.worlds import (
    NETS,
    TRAIN,
    Broken,
    assert_same,
    copied,
    federation,
    watch,
    world,
)

from dapperfl import methods
from dapperfl.core import styles
from dapperfl.core.cost import cost
from dapperfl.core.state import State
from dapperfl.runtime.checkpoint import load_checkpoint, save_checkpoint
from dapperfl.sim.simulator import RoundRecord, Simulator

every_method = pytest.mark.parametrize("name", methods.names())
FULL_NETS = {"fedavg", "fedavg_capable", "fedprox", "moon", "fedsr", "fpl", "scaffold"}


def everything(record: RoundRecord) -> State:
    """Return all tensors that a run goes on with, the clients' memories included."""
    server, memories = record.snapshot.server, record.snapshot.memories
    kept = {f"{client}/{name}": t for client, m in memories.items() for name, t in m.items()}
    own = {"extra": server.extra, "styles": server.styles}
    kept |= {f"{part}/{name}": t for part, state in own.items() for name, t in state.items()}
    return server.weights | kept


def assert_healthy(record: RoundRecord) -> None:
    assert math.isfinite(record.loss)
    assert all(0 <= percent <= 100 for percent in record.accuracy.values())
    assert all(t.isfinite().all() for t in everything(record).values() if t.is_floating_point())


@pytest.mark.parametrize(
    "net", [pytest.param(n, marks=[pytest.mark.slow] * (n == "mobilenetv2")) for n in NETS]
)
@every_method
def test_it_trains_any_net_within_its_budgets(name, net):
    simulator = world(name, net=net)
    watched = watch(simulator)
    start = simulator.start().server.weights
    records = list(simulator.rounds())
    for record in records:
        assert_healthy(record)
        assert not record.left_out
    moved = [n for n, t in records[-1].snapshot.server.weights.items() if not t.equal(start[n])]
    assert set(moved) & set(simulator.graph.parameters)
    full = cost(simulator.graph.full())
    shares = []
    for update in watched.updates:
        held = sum(update.model.weights[n].numel() for n in simulator.graph.parameters)
        assert held == cost(update.model.submodel).parameters == update.cost.parameters_uploaded
        shares.append((held / full.parameters, 1 - update.device.rho + 1e-9))
    within = all(share <= budget for share, budget in shares)
    assert within or all(share == 1 for share, _ in shares)
    assert within == (name not in FULL_NETS) or all(budget >= 1 for _, budget in shares)


@every_method
def test_its_costs_are_those_of_what_it_trained_and_sent(name):
    simulator = world(name)
    watched = watch(simulator)
    record = next(iter(simulator.rounds()))
    statistics = simulator.method.measures(1)
    for update in watched.updates:
        work = next(a for a in watched.assignments if a.device == update.device)
        spent, price = record.costs[update.device.id], cost(update.model.submodel)
        assert spent.train_flops >= work.epochs * price.train_flops * update.num_samples
        assert spent.peak_parameters >= spent.parameters_trained == price.parameters
        sent = sum(t.numel() * t.element_size() for t in update.shared.values())
        assert spent.bytes_up >= price.upload_bytes + sent
        assert (spent.bytes_up > price.upload_bytes + sent) == statistics
        assert spent.bytes_down >= cost(work.model.submodel).upload_bytes


@every_method
def test_styles_are_handed_out_and_only_the_own_one_comes_back(name):
    simulator = world(methods.load(name)(restyle=0.5, restyle_rounds=4))
    watched = watch(simulator)
    list(simulator.rounds())
    told = [task for task in watched.assignments if styles.ALL in task.shared]
    assert {task.round_num for task in told} == {2}
    assert {float(task.shared[styles.SHARE]) for task in told} == {0.125}
    for update in watched.updates:
        assert styles.OWN in update.shared
        assert styles.ALL not in update.shared


@every_method
def test_only_those_who_take_part_count(name):
    simulator = world(name, (0.0, 0.0, 0.4, 0.5), participation=0.75, rounds=3)
    cohorts = []
    for record in simulator.rounds():
        assert_healthy(record)
        cohort = {device.id for device in simulator.cohort(record.round_num)}
        assert record.costs.keys() <= cohort
        assert record.costs
        cohorts.append(cohort)
        assert record.snapshot.memories.keys() <= set.union(*cohorts)
    assert len({frozenset(cohort) for cohort in cohorts}) > 1


@every_method
def test_a_client_that_drops_out_is_left_out_and_the_round_goes_on(name):
    simulator = world(name, (0.0, 0.0, 0.4))
    simulator.runner.data = {**simulator.data, 1: Broken(10)}  # type: ignore[attr-defined]
    for record in simulator.rounds():
        (out,) = record.left_out
        assert out.device.id == 1
        assert out.reason.startswith("the battery is empty (worlds.py:")
        assert 0 in record.costs
        assert 1 not in record.costs
        assert 1 not in record.snapshot.memories
        assert_healthy(record)


@every_method
def test_with_one_strong_client_the_global_model_is_that_clients(name):
    simulator = world(name, (0.0,))
    watched = watch(simulator)
    for record in simulator.rounds():
        client = watched.updates[-1].model.weights
        for parameter in simulator.graph.parameters:
            assert record.snapshot.server.weights[parameter].equal(client[parameter]), parameter


@every_method
def test_a_run_resumed_from_disk_ends_where_the_uninterrupted_one_does(name, tmp_path):
    def start_anew() -> Simulator:
        return world(name, (0.0, 0.0, 0.4, 0.5), participation=0.75, rounds=4)

    whole = list(start_anew().rounds())
    save_checkpoint(tmp_path, whole[1].snapshot)
    simulator = start_anew()
    snapshot = load_checkpoint(tmp_path, simulator.start())
    assert snapshot is not None
    resumed = list(simulator.rounds(snapshot))
    assert [record.round_num for record in resumed] == [3, 4]
    for ours, theirs in zip(resumed, whole[2:], strict=True):
        assert_same(everything(ours), everything(theirs))
        assert (ours.loss, ours.accuracy, ours.costs) == (
            theirs.loss,
            theirs.accuracy,
            theirs.costs,
        )


@every_method
def test_the_order_in_which_clients_train_and_answer_does_not_matter(name):
    forwards, backwards = world(name), world(name)
    watch(backwards, backwards=True)
    for ours, theirs in zip(forwards.rounds(), backwards.rounds(), strict=True):
        assert_same(everything(ours), everything(theirs))


@every_method
def test_it_changes_nothing_it_was_given(name):
    simulator = world(name)
    watched = watch(simulator)
    state = simulator.start()
    template = copied(simulator.net.state_dict())
    for _ in range(2):
        before = [copied(state.server.weights), copied(state.server.extra)]
        memories = {client: copied(memory) for client, memory in state.memories.items()}
        record = simulator.round(state)
        assert_same(state.server.weights, before[0])
        assert_same(state.server.extra, before[1])
        for client, memory in memories.items():
            assert_same(dict(state.memories[client]), memory)
        state = record.snapshot
    for assignment in (a for a in watched.assignments if a.round_num == 1):
        submodel = assignment.model.submodel
        for parameter in simulator.graph.parameters:
            cut = submodel.slice({parameter: template[parameter]})[parameter]
            assert assignment.model.weights[parameter].equal(cut), parameter
    assert_same(dict(simulator.net.state_dict()), template)


def flops(name: str, round_num: int, **settings: Any) -> dict[int, int]:
    simulator = world(methods.load(name)(**settings))
    record = list(simulator.rounds())[round_num - 1]
    return {client: spent.train_flops for client, spent in record.costs.items()}


def test_extra_work_is_paid_for():
    plain, moon, fpl, prox = (flops(name, 2) for name in ("fedavg", "moon", "fpl", "fedprox"))
    macs = cost(world("fedavg").graph.full()).macs
    assert flops("moon", 1) == plain  # nobody has a previous model yet
    for device in federation((0.0, 0.4, 0.5)).devices:
        once = 2 * macs * device.num_samples  # a forward pass of all samples
        assert moon[device.id] == plain[device.id] + 2 * TRAIN.epochs * once
        assert fpl[device.id] == plain[device.id] + once
        share = max(1, round((1 - device.rho) * TRAIN.epochs)) / TRAIN.epochs
        assert prox[device.id] == share * plain[device.id]
    assert flops("fedprox", 2, epochs="all") == plain
