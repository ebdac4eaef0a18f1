"""The clients' optimiser: stochastic gradient descent, its settings and its momentum."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dapperfl.core.state import State
from dapperfl.core.submodel import Submodel
from dapperfl.settings import Range, check_settings, setting


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a client trains; the defaults are the paper's."""

    epochs: int = setting(5, "local epochs in a round", Range(1))
    batch_size: int = setting(64, "examples in a step", Range(2))
    lr: float = setting(0.01, "learning rate of SGD", Range(above=0))
    momentum: float = setting(0.9, "momentum of SGD, zero at a round's start", Range(0, below=1))
    weight_decay: float = setting(1e-5, "weight decay, on every parameter", Range(0))
    shift: float = setting(
        0.0,
        "how far statistics of early features are moved at random in training, as another domain "
        "would: 1 as far as pictures of a batch differ",
        Range(0),
    )

    def __post_init__(self) -> None:
        check_settings(self, "train.")


def sgd(net: nn.Module, own: State, settings: TrainSettings, *, fused: bool) -> torch.optim.SGD:
    """Return the optimiser of a net and of what a client trains beside it, in this order."""
    groups: list[dict[str, Any]] = [
        {"params": list(net.parameters())},
        {"params": list(own.values())},
    ]
    return torch.optim.SGD(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=fused or None,
    )


def momentum_of(parameters: Iterable[tuple[str, Tensor]], optimiser: torch.optim.SGD) -> State:
    """Return the momentum of named parameters; those that took no step yet have none."""
    found = ((name, optimiser.state.get(tensor, {})) for name, tensor in parameters)
    return {name: state["momentum_buffer"] for name, state in found if "momentum_buffer" in state}


def carried_momentum(
    momentum: State, before: Submodel, after: Submodel, template: nn.Module
) -> State:
    """Cut the momentum of one submodel of a template down to another."""
    if before.kept:  # from small to smaller, by way of the full shape
        full = dict(template.named_parameters())
        whole = {name: torch.zeros_like(full[name]) for name in momentum}
        momentum = before.scatter(momentum, whole)
    return after.slice(momentum)
