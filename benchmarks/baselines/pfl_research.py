"""Baseline (c): the bare loop's work in pfl-research's simulation, with its own FedAvg.

python -m benchmarks.baselines.pfl_research DEVICES WIDTH ROUNDS    # needs pfl
"""

import json
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.baselines import bare_loop, same_work
from benchmarks.synthetic import examples


class Learner(nn.Module):
    """The net with the two functions that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:  # noqa: A002
        """Return the objective of a batch."""
        self.train(not eval)
        return cross_entropy(self.net(bare_loop.normalised(images)), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor, eval: bool = False) -> dict[str, Any]:  # noqa: A002
        """Return the share of right answers."""
        self.train(not eval)
        right = self.net(bare_loop.normalised(images)).argmax(1) == labels
        return {"accuracy": Weighted(float(right.sum()), len(labels))}


class Clock(TrainingProcessCallback):
    """Evaluates after each round, as the bare loop does, and notes when it ends."""

    def __init__(self) -> None:
        self.test = examples(bare_loop.BATCH, 32)
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """Let the training go on."""
        model.pytorch_model.metrics(self.test.images, self.test.labels, eval=True)
        self.ends.append(time.perf_counter())
        return False, Metrics()


def model(width: int) -> PyTorchModel:
    """Wrap the net; the central step takes the mean of the updates as it is."""
    learner = Learner(same_work.net(width))
    options = {"momentum": bare_loop.MOMENTUM, "weight_decay": bare_loop.WEIGHT_DECAY}
    return PyTorchModel(
        learner,
        local_optimizer_create=lambda parameters, **_: torch.optim.SGD(
            parameters, lr=bare_loop.LR, **options
        ),
        central_optimizer=torch.optim.SGD(learner.parameters(), lr=1.0),
    )


def rounds(devices: int, width: int, repeats: int) -> list[float]:
    """Run the simulation; return the seconds of its last rounds."""
    shares = {str(i): own for i, own in enumerate(same_work.clients(devices))}
    order = iter(list(shares) * (repeats + 3))  # every round takes all devices
    train = FederatedDataset(
        lambda user: Dataset([shares[user].images, shares[user].labels], user_id=user),
        lambda: next(order),
    )
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=repeats + 2,
            evaluation_frequency=repeats + 2,  # by the devices: in the first round only
            train_cohort_size=devices,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=train, val_data=None),
        model=model(width),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=bare_loop.LR, local_batch_size=bare_loop.BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=bare_loop.BATCH),
        callbacks=[clock],
    )
    return [after - before for before, after in pairwise(clock.ends)][-repeats:]


if __name__ == "__main__":
    work = tuple(map(int, sys.argv[1:4]))
    print(json.dumps(same_work.beside_bare(lambda: rounds(*work), *work)))  # noqa: T201
