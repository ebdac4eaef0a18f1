"""The numbers of summary.json, against arithmetic done by hand."""

import pytest

from dapperfl.core.cost import Cost
from dapperfl.core.messages import ClientCost, Device
from dapperfl.lab.records import Absence, RoundLine
from dapperfl.lab.summary import at_home, marks, summarise, total_costs
from dapperfl.sim.simulator import LevelCost


def _line(number: int, dark: float, light: float, **costs: ClientCost) -> RoundLine:
    return RoundLine(
        round=number,
        accuracy={"dark": dark, "light": light},
        mean=(dark + light) / 2,
        loss=1.0,
        seconds=2.0,
        costs={int(key[1:]): cost for key, cost in costs.items()},
        left_out=(Absence(1, "gone"),) if number == 2 else (),
    )


def test_best_last_and_the_mean_of_the_last_five():
    assert marks([90.0, 10.0, 20.0, 30.0, 40.0, 50.0]) == {
        "best": 90.0,
        "last": 50.0,
        "last5": 30.0,
    }


def test_fewer_than_five_rounds_are_averaged_as_they_are():
    assert marks([10.0, 20.0]) == {"best": 20.0, "last": 20.0, "last5": 15.0}


def test_the_global_best_is_a_round_and_the_domains_best_are_their_own(toy):
    lines = [_line(1, 80.0, 20.0), _line(2, 30.0, 60.0), _line(3, 40.0, 44.0)]
    summary = summarise(
        toy(),
        lines,
        spent=ClientCost(1, 2, 3, 4, 5, 6),
        dense=Cost(100, 7, 8, 400),
        levels=[(LevelCost(0.5, 50, 1, 2, 200), {"dark": 30.0, "light": 50.0})],
        devices=[Device(0, "dark", 0.5, 19)],
        calibrated={0: 40.0, 3: 60.0},
    )
    assert summary["global_accuracy"] == {
        "best": 50.0,
        "last": 42.0,
        "last5": pytest.approx((50 + 45 + 42) / 3),
    }
    assert summary["domain_accuracy"]["dark"] == {"best": 80.0, "last": 40.0, "last5": 50.0}
    assert summary["domain_accuracy"]["light"]["best"] == 60.0
    assert summary["seconds"] == 6.0
    assert summary["left_out"] == 1
    price = {"rho": 0.5, "parameters": 50, "macs": 1, "train_flops": 2, "upload_bytes": 200}
    accuracy = {"accuracy": {"dark": 30.0, "light": 50.0}, "mean_accuracy": 40.0}
    assert summary["levels"] == [price | accuracy]
    assert summary["devices"] == [{"id": 0, "domain": "dark", "rho": 0.5, "num_samples": 19}]
    assert summary["at_home"] == 30.0
    assert summary["at_home_calibrated"] == 50.0
    assert summary["dense"]["parameters"] == 100
    assert (summary["costs"]["parameters_trained"], summary["costs"]["bytes_down"]) == (1, 6)
    assert summary["schema_version"] == 1
    assert {"dapperfl", "python", "torch", "platform", "threads"} <= summary["versions"].keys()


def test_costs_are_added_over_rounds_and_clients_and_sizes_are_the_largest():
    lines = [
        _line(1, 0, 0, c0=ClientCost(10, 20, 30, 1, 2, 3), c1=ClientCost(5, 25, 6, 10, 20, 30)),
        _line(2, 0, 0, c0=ClientCost(11, 1, 1, 100, 200, 300)),
    ]
    assert total_costs(lines) == ClientCost(
        parameters_trained=11,
        parameters_uploaded=25,
        peak_parameters=30,
        train_flops=111,
        bytes_up=222,
        bytes_down=333,
    )


def test_levels_that_nobody_could_test_have_no_accuracy(toy):
    summary = summarise(
        toy(),
        [_line(1, 80.0, 20.0)],
        spent=ClientCost(),
        dense=Cost(100, 7, 8, 400),
        levels=[(LevelCost(0.5, 50, 1, 2, 200), {})],
        devices=[],
        calibrated={},
    )
    assert summary["levels"][0]["mean_accuracy"] is None
    assert summary["at_home_calibrated"] is None


def test_a_device_is_at_home_with_its_own_net_on_its_own_domain():
    levels = {0.0: {"dark": 90.0, "light": 80.0}, 0.8: {"dark": 50.0, "light": 40.0}}
    fleet = [Device(0, "dark", 0.0, 5), Device(1, "light", 0.8, 50), Device(2, "dark", 0.8, 5)]
    assert at_home(levels, fleet) == 60.0  # 90, 40 and 50: all devices count alike


def test_a_device_of_no_single_domain_has_no_home():
    levels = {0.0: {"dark": 90.0}}
    assert at_home(levels, [Device(0, "mixed", 0.0, 5), Device(1, "dark", 0.0, 5)]) == 90.0
    assert at_home(levels, [Device(0, "mixed", 0.0, 5)]) is None
    assert at_home({}, [Device(0, "dark", 0.0, 5)]) is None
