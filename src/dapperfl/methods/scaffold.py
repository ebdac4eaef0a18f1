"""SCAFFOLD: control variates against the drift of clients (Karimireddy et al., 2020).

The server keeps c, the gradient of all, and a client c_i, its own: each step goes along
g - c_i + c. What a client's gradient was it reads off the way its weights went (option II).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from dapperfl.core.aggregation import RecoveredMean
from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    Device,
    LocalModel,
    Report,
    ServerState,
    Work,
)
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import Dice
from dapperfl.core.state import State
from dapperfl.methods.base import MeasuringMethod

PATH = "scaffold_path"  # how far the optimiser takes what has a gradient of -1


@dataclass(frozen=True, kw_only=True)
class Scaffold(MeasuringMethod):
    """FedAvg whose clients correct each step by what they know of their own drift."""

    def own(self, work: Work) -> State:
        """Return a number that every step drives on: the learning rates, momentum included."""
        like = next(t for t in work.model.weights.values() if t.is_floating_point())
        return {PATH: like.new_zeros(())}

    def assign(
        self, server: ServerState, device: Device, epochs: int, dice: Dice
    ) -> Assignment | None:
        """Send c along with the model."""
        return Assignment(server.round_num + 1, device, server.model, epochs, server.extra)

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return cross-entropy, and what has no value but adds c - c_i to its gradient."""
        correction = -work.memory[PATH]
        for name, parameter in net.named_parameters():
            if name in work.shared:
                drift = work.shared[name] - work.memory.get(name, 0)
                correction = correction + (drift * parameter).sum()
        return super().loss(net, batch, work) + (correction - correction.detach())

    def report(self, net: Net, batches: Iterable[Batch], work: Work) -> Report:
        """Keep the new c_i = c_i - c + (x - y) / path, and send how it has changed."""
        start, path = work.model.weights, work.memory[PATH].detach()
        changes, controls = {}, {}
        for name, parameter in net.named_parameters():
            slope = (start[name] - parameter.detach()) / path
            changes[name] = slope - work.shared.get(name, 0)
            controls[name] = changes[name] + work.memory.get(name, 0)
        return Report(shared=changes, memory=controls)

    def update(self, server: ServerState, updates: Iterable[ClientUpdate]) -> ServerState:
        """Average the weights; move c by the mean change, that of who did not answer being none."""
        answers = iter(updates)
        first = next(answers, None)
        if first is None:
            return super().update(server, ())
        names = [name for name in first.shared if name in server.weights]
        change = RecoveredMean({name: torch.zeros_like(server.weights[name]) for name in names})

        def folding() -> Iterator[ClientUpdate]:
            for update in chain([first], answers):
                change.add(LocalModel(update.shared, update.model.submodel), self.weight(update))
                yield update

        after = super().update(server, folding())
        share = min(change.weight / self._weight_of_all(server, first), 1.0)
        moved = {
            name: server.extra.get(name, 0) + share * mean for name, mean in change.result().items()
        }
        return server.advance(after.weights, moved)

    def _weight_of_all(self, server: ServerState, like: ClientUpdate) -> float:
        """Return what the whole fleet would weigh."""
        sizes = Counter(device.num_samples for device in server.fleet)
        weights = {size: self.weight(replace(like, num_samples=size)) for size in sizes}
        return sum(weights[size] * count for size, count in sizes.items())
