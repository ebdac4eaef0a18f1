"""Every hyper-parameter of every method must change some result, early or late.

This is the test that would have caught the authors' release, where fusion never runs.
"""

import dataclasses
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from _pytest.mark import ParameterSet
from tests.tiny import tiny_federation, tiny_net

from dapperfl import methods
from dapperfl.core.state import State
from dapperfl.methods.base import Method
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.simulator import Simulator

ROUNDS = 4
# Settings under which a field has something to say, where the default ones leave it silent.
CONTEXT: dict[tuple[str, str], dict[str, Any]] = {
    ("dapperfl", "alpha_min"): {"epsilon": 0.9},  # it acts once the factor has fallen
    ("dapperfl", "dense_batches"): {"dense": "batches"},
}
CONTEXT_OF_ALL: dict[str, dict[str, Any]] = {
    "restyle_rounds": {"restyle": 0.5},
    # Of as many rounds as are run here, all or none are measured.
    "bn_statistics": {"recalibrate_rounds": 0},
    "recalibrate_rounds": {"bn_statistics": "average", "recalibrate_rounds": 0},
}
# Values to try where the type alone does not say which are good.
OTHERS: dict[tuple[str, str], list[Any]] = {
    ("dapperfl", "averaging"): [1.0],  # a small share of four rounds is less than one
    ("dapperfl", "scope"): ["all"],  # auto is inner for a net as narrow as this
    ("feddrop", "rho"): [0.2],
    **{(name, "recalibrate_rounds"): [ROUNDS] for name in methods.names()},
}


def run(method: Method) -> State:
    simulator = Simulator(
        method=method,
        net=tiny_net(),
        federation=tiny_federation((0.0, 0.5, 0.0), samples=8),  # weights need two whole nets
        train=TrainSettings(epochs=2, batch_size=4, lr=0.05),
        rounds=ROUNDS,
    )
    *_, last = simulator.rounds()
    assert not last.left_out
    model = simulator.delivered(last.snapshot.server)
    net = model.submodel.shrink(simulator.net).eval()
    net.load_state_dict(model.weights)
    with torch.no_grad():  # some fields act at test time only
        answers = net(next(simulator.judge.test["light"].clean()).x)
    return last.snapshot.server.weights | {"answers": answers}


baseline = cache(run)  # methods are frozen, so one run serves all fields


def other_values(place: tuple[str, str], hint: Any, value: Any) -> list[Any]:
    """Return values of a field that differ from the given one."""
    if place in OTHERS:
        return OTHERS[place]
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if choice != value]
    if hint is bool:
        return [not value]
    return [(value * 0.5 or 0.5) if hint is float else 1 if value > 1 else 2]


SHARED = {field.name for field in dataclasses.fields(Method)}  # quickly, with two methods only


def case(name: str, field: dataclasses.Field[Any]) -> ParameterSet:
    quick = field.name not in SHARED or name in ("fedavg", "dapperfl")
    marks = () if quick else (pytest.mark.slow,)
    return pytest.param(name, field, id=f"{name}.{field.name}", marks=marks)


FIELDS = [
    case(name, field)
    for name in methods.names()
    for field in dataclasses.fields(methods.load(name))
]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_every_field_changes_the_result(name, field):
    cls = methods.load(name)
    context = CONTEXT.get((name, field.name)) or CONTEXT_OF_ALL.get(field.name, {})
    method = cls(**context)
    before = baseline(method)
    hint = get_type_hints(cls)[field.name]
    for value in other_values((name, field.name), hint, getattr(method, field.name)):
        after = run(dataclasses.replace(method, **{field.name: value}))
        both = before.keys() & after.keys()  # a tensor more or less is no proof
        changed = any(not torch.equal(before[key], after[key]) for key in both)
        assert changed, f"{name}.{field.name} = {value} changes nothing"


@pytest.mark.parametrize("name", methods.names())
def test_without_a_change_nothing_changes(name):
    """Otherwise the test above could be right by chance."""
    first, second = baseline(methods.load(name)()), run(methods.load(name)())
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
