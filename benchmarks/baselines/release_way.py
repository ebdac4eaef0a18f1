"""Baseline (b): a round as the authors' release works, written by us from what it is known to do.

Pictures go one by one through Pillow in a DataLoader. Every client has a full-size net that is
trained in eager mode, one client after another; after the first epoch masks are laid over it
(torch's own pruning: weight_orig × mask in every forward pass), and taken away for the average.
The test sets go through DataLoaders as well. torch's switches are its defaults: float32, with TF32
in convolutions.

Left out, to the baseline's advantage: scaling pictures to 32 × 32, and reading the loss of every
step for a progress bar.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader

from benchmarks.baselines.pictures import Pictures
from dapperfl.data.benchmark import Examples, Federation
from dapperfl.nets.resnet import ResNet
from dapperfl.runtime.optimiser import TrainSettings

GAMMA = 0.01
Loader = DataLoader[tuple[Tensor, int]]


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Undo for a while what this package sets to compute exactly, which would slow others down."""
    conv, product = torch.backends.cudnn, torch.backends.cuda.matmul
    before = conv.allow_tf32, conv.deterministic, product.allow_tf32
    exact = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    conv.allow_tf32, conv.deterministic, product.allow_tf32 = True, False, False
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        conv.allow_tf32, conv.deterministic, product.allow_tf32 = before
        torch.use_deterministic_algorithms(exact, warn_only=warn_only)


def masked(net: nn.Module, rho: float) -> None:
    """Mask a share rho on both sides of each convolution, of the norms and of the head's inputs.

    The stem stays whole. Masks follow each tensor's own norms, so neighbours do not match.
    """
    for name, layer in net.named_modules():
        if name.startswith("stem"):
            continue
        if isinstance(layer, nn.Conv2d):
            for axis in (1, 0):
                prune.ln_structured(layer, "weight", amount=rho, n=1, dim=axis)  # type: ignore[no-untyped-call]
        elif isinstance(layer, nn.BatchNorm2d):
            prune.l1_unstructured(layer, "weight", amount=rho)  # type: ignore[no-untyped-call]
        elif isinstance(layer, nn.Linear):
            prune.ln_structured(layer, "weight", amount=rho, n=2, dim=1)  # type: ignore[no-untyped-call]


def unmasked(net: nn.Module) -> None:
    """Make the masks permanent."""
    for layer in net.modules():
        if hasattr(layer, "weight_mask"):
            prune.remove(layer, "weight")  # type: ignore[no-untyped-call]


class ReleaseWay:
    """Ten nets, ten loaders, one round after another."""

    def __init__(
        self, net: ResNet, world: Federation, settings: TrainSettings, device: str, workers: int
    ) -> None:
        self.world, self.settings, self.device, self.workers = world, settings, device, workers
        self.net = copy.deepcopy(net).to(device)
        self.nets = [copy.deepcopy(self.net) for _ in world.devices]
        self.train = [self._loader(world.train[each.id], train=True) for each in world.devices]
        self.test = {name: self._loader(part, train=False) for name, part in world.test.items()}

    def _loader(self, examples: Examples, *, train: bool) -> Loader:
        pictures = Pictures(examples, train=train)
        size = self.settings.batch_size
        return DataLoader(pictures, batch_size=size, shuffle=train, num_workers=self.workers)

    def round(self) -> dict[str, float]:
        """Train all clients, average them, and return the accuracy on every test set."""
        with torch_defaults():
            for net, loader, device in zip(self.nets, self.train, self.world.devices, strict=True):
                net.load_state_dict(self.net.state_dict())
                self._train(net, loader, device.rho)
            self._average()
            return {name: self._accuracy(loader) for name, loader in self.test.items()}

    def _train(self, net: ResNet, loader: Loader, rho: float) -> None:
        optimiser = torch.optim.SGD(
            net.parameters(),
            lr=self.settings.lr,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
        )
        net.train()
        for epoch in range(self.settings.epochs):
            for images, labels in loader:
                x, y = images.to(self.device), labels.to(self.device)
                z = net.pool(net.stages(F.relu(net.stem(x)))).flatten(1)
                penalty = torch.linalg.vector_norm(z, dim=1).mean()
                loss = F.cross_entropy(net.head(z), y) + GAMMA * penalty
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            if epoch == 0 and rho > 0:
                masked(net, rho)
        unmasked(net)

    def _average(self) -> None:
        counts = [len(self.world.train[device.id]) for device in self.world.devices]
        mean = {name: torch.zeros_like(tensor) for name, tensor in self.net.state_dict().items()}
        for net, count in zip(self.nets, counts, strict=True):
            for name, tensor in net.state_dict().items():
                mean[name] += (tensor * (count / sum(counts))).to(tensor.dtype)
        self.net.load_state_dict(mean)

    @torch.no_grad()
    def _accuracy(self, loader: Loader) -> float:
        self.net.eval()
        right = count = 0
        for images, labels in loader:
            x, y = images.to(self.device), labels.to(self.device)
            right += int((self.net(x).argmax(1) == y).sum())
            count += len(y)
        return 100 * right / count
