"""What a physically smaller net buys in time: one training step on the CPU.

With one thread and channels last, as the engine trains a client; two threads on a busy machine
measure the machine. The goals are for that; nets whose features lie contiguous stand beside it.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import Options, Row, at_least, faster, medians, with_threads
from dapperfl import ChannelGraph, Submodel, l1_scores, nets
from dapperfl.core.channels import Scope
from dapperfl.core.submodel import copy_net
from dapperfl.runtime.turning import laid_out

GOALS: dict[Scope, float] = {"all": 3.5, "inner": 2.8}  # at rho = .8 the ideal is 5
FORMATS = {"channels_last": True, "contiguous": False}


def submodel_of(net: nn.Module, rho: float, scope: Scope) -> Submodel:
    """Cut the strongest channels' submodel out of a net."""
    graph = ChannelGraph.trace(net, torch.zeros(1, 3, 32, 32))
    return l1_scores(graph, net.state_dict()).top(rho, scope=scope)


def training_step(net: nn.Module, batch: int, turns: bool) -> Callable[[], object]:
    """Return one optimiser step of a copy of the net on random images."""
    net = laid_out(copy_net(net).train(), turns)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(batch, 3, 32, 32)
    y = torch.randint(0, 10, (batch,))

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def measure(options: Options) -> Iterator[Row | str]:
    """Compare a client's step at rho = .8 with the full net's."""
    width, batch, repeats = (8, 8, 2) if options.quick else (64, 64, 7)
    for layout, turns in FORMATS.items():
        for scope, goal in GOALS.items():
            net = nets.build("resnet10", num_classes=10, width=width)
            small = submodel_of(net, 0.8, scope).shrink(net)
            steps = [training_step(each, batch, turns) for each in (net, small)]
            work = [with_threads(1, step) for step in steps]
            slow, fast = medians(work, repeats)
            name = (
                f"CPU step at rho .8 against the full net, ResNet10 width {width}, batch {batch}, "
                f"fp32, one thread, {layout}, scope {scope}"
            )
            yield faster(name, fast, slow, at_least(goal) if turns else None)
