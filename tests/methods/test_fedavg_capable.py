import pytest
from tests.methods.rig import fleet_of, server_of
from tests.tiny import tiny_federation, tiny_net

from dapperfl.core.rng import Dice
from dapperfl.errors import ConfigError
from dapperfl.methods.fedavg_capable import FedAvgCapable
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.sim.simulator import Simulator

TRAIN = TrainSettings(epochs=1, batch_size=4)


def test_only_devices_that_can_train_the_full_net_are_asked():
    method = FedAvgCapable()
    server = server_of(method, (0.0, 0.2, 0.8, 0.0))
    asked = [method.assign(server, device, 5, Dice(0, 1, device.id)) for device in server.fleet]
    assert [assignment is not None for assignment in asked] == [True, False, False, True]
    assert all(not a.model.submodel.kept and a.epochs == 5 for a in asked if a)


def test_the_others_cost_nothing():
    world = tiny_federation((0.0, 0.4, 0.0))
    simulator = Simulator(
        method=FedAvgCapable(), net=tiny_net(), federation=world, train=TRAIN, rounds=1
    )
    (record,) = simulator.rounds()
    assert sorted(record.costs) == [0, 2]
    assert record.left_out == ()  # nothing went wrong


def test_a_fleet_without_a_capable_device_is_refused_before_the_first_round():
    with pytest.raises(ConfigError, match=r"no device can train the full net.*fleet\.rhos"):
        server_of(FedAvgCapable(), (0.2, 0.4))
    assert fleet_of((0.2, 0.4))
    simulator = Simulator(
        method=FedAvgCapable(), net=tiny_net(), federation=tiny_federation((0.4,)), train=TRAIN
    )
    with pytest.raises(ConfigError, match="no device can train"):
        next(simulator.rounds())
