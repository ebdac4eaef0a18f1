"""The smallest things that are still real: a residual net, a graph, a federation."""

from typing import Any

import torch
from torch import Tensor, nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import Device
from dapperfl.core.rng import generator
from dapperfl.data.benchmark import Examples, Federation


class TinyNet(nn.Module):
    """Stem, one residual block, head: one stream and one inner group."""

    def __init__(self, width: int = 8, classes: int = 3, *, norm: bool = True) -> None:
        super().__init__()
        self.stem: Any = nn.Conv2d(3, width, 3, padding=1)
        self.conv1 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.bn1: Any = nn.BatchNorm2d(2 * width) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(2 * width, width, 3, padding=1, bias=False)
        self.bn2: Any = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.fc = nn.Linear(width, classes)
        self.step: nn.Parameter | None
        self.register_parameter("step", None)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        branch = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        x = torch.relu(x + (branch if self.step is None else branch * self.step))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def tiny_net(seed: int = 0, width: int = 8, *, norm: bool = True) -> TinyNet:
    """Return a net with weights, gates and statistics that are all different."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = TinyNet(width, norm=norm)
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.is_floating_point():
                tensor.data.add_(torch.rand_like(tensor) * 0.5)
    return net


def tiny_graph(net: nn.Module | None = None) -> ChannelGraph:
    return ChannelGraph.trace(net or tiny_net(), torch.zeros(1, 3, 6, 6))


def tiny_examples(count: int, *path: int | str, classes: int = 3) -> Examples:
    """Random 6×6 pictures whose brightness in one channel gives the label away."""
    rng = generator(0, "tiny", *path)
    labels = torch.arange(count) % classes
    images = torch.randint(0, 120, (count, 3, 6, 6), generator=rng, dtype=torch.uint8)
    images[torch.arange(count), labels] += 100
    return Examples(images, labels)


def tiny_federation(rhos: tuple[float, ...] = (0.0, 0.4, 0.6), samples: int = 12) -> Federation:
    """One device a level, in two domains."""
    devices = tuple(
        Device(i, "dark" if i % 2 else "light", rho, samples + i) for i, rho in enumerate(rhos)
    )
    return Federation(
        devices=devices,
        train={d.id: tiny_examples(d.num_samples, "train", d.id) for d in devices},
        test={name: tiny_examples(9, "test", name) for name in ("light", "dark")},
        classes=("red", "green", "blue"),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        pad=1,
    )
