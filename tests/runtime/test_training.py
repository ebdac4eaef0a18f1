from dataclasses import dataclass
from functools import partial

import pytest
import torch
from tests.tiny import tiny_examples, tiny_graph, tiny_net
from torch import nn
from torch.nn.functional import cross_entropy

from dapperfl.core.cost import cost
from dapperfl.core.fusion import fuse, fusion_factor
from dapperfl.core.messages import Device, LocalModel, Work
from dapperfl.core.rng import generator
from dapperfl.core.state import State, snapshot
from dapperfl.data.batches import Batches
from dapperfl.errors import ConfigError, RunError
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL
from dapperfl.methods.fedavg import FedAvg
from dapperfl.runtime.local import PlainNet, Trade
from dapperfl.runtime.optimiser import TrainSettings
from dapperfl.runtime.training import client_round, train_client

SETTINGS = TrainSettings(epochs=3, batch_size=4, lr=0.05, momentum=0.9, weight_decay=1e-3)


def work_for(net: nn.Module, rho: float, round_num: int = 2, epochs: int = 3) -> Work:
    model = LocalModel(snapshot(net), tiny_graph(net).full())
    return Work(round_num, Device(5, "light", rho, 14), model, epochs)


def data(count: int = 14) -> Batches:
    return Batches(tiny_examples(count, "train"), batch_size=4)


def masked_reference(net: nn.Module, work: Work, method: DapperFL) -> State:
    """The same client written plainly: full tensors, masks re-applied after every step."""
    net = tiny_net().double()
    rng = generator(0, "batches", work.round_num, work.device.id)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    start = snapshot(net)
    submodel = None
    dense = method.dense_batches if method.dense == "batches" else 4  # all of the first epoch
    steps = 0
    for _ in (1, 2, 3):
        for batch in data().epoch(rng):
            steps += 1
            optimiser.zero_grad()
            cross_entropy(net(batch.x.double()), batch.y).backward()
            optimiser.step()
            if submodel is not None:
                net.load_state_dict(submodel.mask(net.state_dict()))
                for name, parameter in net.named_parameters():
                    state = optimiser.state[parameter]
                    momentum = submodel.mask({name: state["momentum_buffer"]})[name]
                    state["momentum_buffer"] = momentum
            if steps != dense:
                continue
            alpha = fusion_factor(work.round_num, method.alpha_0, method.alpha_min, method.epsilon)
            fused = fuse(start, snapshot(net), alpha)
            submodel = method.prune(LocalModel(fused, work.model.submodel), work.device.rho)
            net.load_state_dict(submodel.mask(fused))
            for name, parameter in net.named_parameters():
                state = optimiser.state[parameter]
                state["momentum_buffer"] = submodel.mask({name: state["momentum_buffer"]})[name]
    assert submodel is not None
    return submodel.slice(net.state_dict())


@pytest.mark.parametrize(
    ("scope", "dense", "batches"),
    [("inner", "full", 1), ("all", "full", 1), ("all", "batches", 1), ("all", "batches", 3)],
)
def test_a_client_trains_its_shrunk_net_as_a_masked_one(scope, dense, batches):
    net = tiny_net()
    method = DapperFL(gamma=0.0, scope=scope, multiple=1, dense=dense, dense_batches=batches)
    work = work_for(net, 0.4)
    double = LocalModel(
        {n: t.double() if t.is_floating_point() else t for n, t in work.model.weights.items()},
        work.model.submodel,
    )
    work = Work(work.round_num, work.device, double, 3)

    class DoubleData(Batches):
        def epoch(self, generator):
            for batch in super().epoch(generator):
                yield batch._replace(x=batch.x.double())

    ours = train_client(
        Trade(method, tiny_net().double(), SETTINGS),
        work,
        DoubleData(tiny_examples(14, "train"), batch_size=4),
        seed=0,
    ).update.model
    theirs = masked_reference(net, work, method)
    assert ours.submodel.kept
    for name, tensor in ours.weights.items():
        assert tensor.shape == theirs[name].shape
        assert torch.allclose(tensor, theirs[name], rtol=1e-9, atol=1e-12), name


def test_the_template_and_the_global_weights_stay_as_they_are():
    net = tiny_net()
    before, work = snapshot(net), work_for(net, 0.5)
    train_client(Trade(DapperFL(), net, SETTINGS), work, data(), seed=0)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert torch.equal(work.model.weights[name], before[name])


def test_the_result_depends_on_seed_round_and_device_alone():
    def run(seed: int, round_num: int) -> State:
        torch.manual_seed(torch.randint(0, 1000, ()).item())  # whatever the global state is
        work = work_for(DroppingNet(), 0.0, round_num)
        trade = Trade(FedAvg(), DroppingNet(), SETTINGS)
        trained = train_client(trade, work, data(), seed=seed)
        return trained.update.model.weights

    class DroppingNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(nn.functional.dropout(self.conv(x).mean((2, 3)), 0.5, self.training))

    assert torch.equal(run(0, 1)["fc.weight"], run(0, 1)["fc.weight"])
    assert not torch.equal(run(0, 1)["fc.weight"], run(1, 1)["fc.weight"])
    assert not torch.equal(run(0, 1)["fc.weight"], run(0, 2)["fc.weight"])


def test_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    trade = Trade(FedAvg(), tiny_net(), SETTINGS)
    train_client(trade, work_for(tiny_net(), 0.0), data(), seed=0)
    assert torch.equal(before, torch.get_rng_state())


def test_costs_count_the_dense_epoch_and_the_small_ones():
    net = tiny_net()
    trade = Trade(DapperFL(scope="all", dense="full", restyle=0.0), net, SETTINGS)
    update = train_client(trade, work_for(net, 0.5), data(), seed=0).update
    full, small = cost(tiny_graph(net).full()), cost(update.model.submodel)
    assert small.parameters < full.parameters
    assert update.cost.train_flops == 14 * (full.train_flops + 2 * small.train_flops)
    assert update.cost.peak_parameters == full.parameters
    assert update.cost.parameters_trained == update.cost.parameters_uploaded == small.parameters
    assert update.cost.bytes_up == small.upload_bytes
    assert update.cost.bytes_down == full.upload_bytes
    assert update.num_samples == 14


@pytest.mark.parametrize(("batches", "dense"), [(1, 4), (3, 12), (4, 14), (9, 14)])
def test_costs_count_the_dense_batches_however_few_there_are(batches, dense):
    net = tiny_net()
    method = DapperFL(scope="all", dense="batches", dense_batches=batches)
    update = train_client(Trade(method, net, SETTINGS), work_for(net, 0.5), data(), seed=0).update
    full, small = cost(tiny_graph(net).full()), cost(update.model.submodel)
    rest = 3 * 14 - dense
    assert update.cost.train_flops == dense * full.train_flops + rest * small.train_flops


@pytest.mark.parametrize(
    ("method", "parts"),
    [(FedAvg(), ["report"]), (DapperFL(multiple=1), ["act", "train", "report"])],
)
def test_a_round_says_what_comes_after_each_pause(method, parts):
    net = tiny_net()
    trade = Trade(method, net, SETTINGS)
    work = work_for(net, 0.5)
    assert list(client_round(method, work, data(), seed=0, start=partial(PlainNet, trade))) == parts


def test_a_loss_that_is_not_finite_ends_the_clients_round():
    settings = TrainSettings(epochs=3, batch_size=4, lr=1e30)
    trade = Trade(FedAvg(), tiny_net(), settings)
    with pytest.raises(RunError, match=r"loss is (nan|inf)|not finite"):
        train_client(trade, work_for(tiny_net(), 0), data(), seed=0)


def test_a_client_without_data_says_so():
    trade = Trade(FedAvg(), tiny_net(), SETTINGS)
    with pytest.raises(RunError, match="no training data"):
        train_client(trade, work_for(tiny_net(), 0), data(0), seed=0)


def test_a_method_may_shrink_twice():
    @dataclass(frozen=True, kw_only=True)
    class Twice(Method):
        def after_epoch(self, epoch, local, work):
            graph = local.submodel.graph
            full = local.submodel.scatter(local.weights, work.model.weights)
            kept = DapperFL(multiple=1).prune(LocalModel(full, graph.full()), 0.2 * epoch)
            return LocalModel(kept.slice(full), kept)

    net = tiny_net()
    trade = Trade(Twice(), net, SETTINGS)
    update = train_client(trade, work_for(net, 0.0), data(), seed=0).update
    assert cost(update.model.submodel).parameters <= 0.4 * cost(tiny_graph(net).full()).parameters


@pytest.mark.parametrize(
    ("field", "value"),
    [("epochs", 0), ("batch_size", 1), ("lr", 0.0), ("lr", float("nan")), ("momentum", 1.0),
     ("weight_decay", -1.0)],
)  # fmt: skip
def test_settings_out_of_range_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"train\.{field} = .*: expected"):
        TrainSettings(**{field: value})
