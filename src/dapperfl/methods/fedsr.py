"""FedSR: a simple, probabilistic representation (Nguyen et al., 2022).

z is drawn from N(mu(x), sigma(x)²); its norm is kept small (L2R), its distribution near a learnt
Gaussian of its class (CMI). The class Gaussians are trained on the client and stay there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from dapperfl.core.losses import feature_norm
from dapperfl.core.messages import Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.rng import generator
from dapperfl.core.state import State
from dapperfl.core.submodel import copy_net
from dapperfl.errors import TraceError
from dapperfl.methods.base import MeasuringMethod
from dapperfl.settings import Range, setting

SMALLEST_SIGMA = 1e-6


class ProbabilisticHead(nn.Module):
    """A projection to mean and spread, a sample of z, and the predictor that reads it."""

    def __init__(self, predictor: nn.Linear, samples: int) -> None:
        super().__init__()
        width = predictor.in_features
        self.fedsr_projection = nn.Linear(width, 2 * width)
        self.fedsr_predictor = predictor
        self.samples = samples

    @property
    def in_features(self) -> int:
        """What a net's own code may ask its last layer for, as in `x.view(-1, fc.in_features)`."""
        return self.fedsr_projection.in_features

    @property
    def out_features(self) -> int:
        """The number of logits."""
        return self.fedsr_predictor.out_features

    @property
    def weight(self) -> Tensor:
        """The predictor's, for a look at its type or device."""
        return self.fedsr_predictor.weight

    @property
    def bias(self) -> Tensor | None:
        """The predictor's, as well."""
        return self.fedsr_predictor.bias

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of one sample in training; else the log of averaged probabilities."""
        mean, sigma = mean_and_sigma(self.fedsr_projection(features))
        if self.training:
            logits: Tensor = self.fedsr_predictor(mean + sigma * torch.randn_like(sigma))
            return logits
        if not self.samples:
            return self.fedsr_predictor(mean)  # type: ignore[no-any-return]
        noise = torch.randn(self.samples, mean.shape[-1], generator=generator(0, "fedsr"))
        draws = [
            self.fedsr_predictor(mean + sigma * eps).log_softmax(-1)
            for eps in noise.to(mean.device, mean.dtype)
        ]
        return torch.stack(draws).logsumexp(0) - math.log(self.samples)


def mean_and_sigma(projected: Tensor) -> tuple[Tensor, Tensor]:
    """Split a projection into the mean of z and its positive spread."""
    mean, raw = projected.chunk(2, dim=-1)
    return mean, softplus(raw) + SMALLEST_SIGMA


def class_divergence(mean: Tensor, sigma: Tensor, gaussian: tuple[Tensor, Tensor]) -> Tensor:
    """Return the batch mean of KL(N(mean, sigma²) ‖ N(r_mean, r_sigma²)), summed over features.

    A net whose predictor looks at each position, (batch, positions, features), has as many z.
    """
    positions = [1] * (mean.dim() - 2)
    r_mean, r_sigma = (each.reshape(len(each), *positions, -1) for each in gaussian)
    spread = (sigma.square() + (mean - r_mean).square()) / (2 * r_sigma.square())
    return (r_sigma.log() - sigma.log() + spread - 0.5).sum(-1).mean()


@dataclass(frozen=True, kw_only=True)
class FedSR(MeasuringMethod):
    """FedAvg on a probabilistic representation with two regularisers."""

    alpha_l2r: float = setting(0.01, "weight of the representation's norm", Range(0))
    alpha_cmi: float = setting(0.001, "weight of the divergence from the class Gaussian", Range(0))
    l2r_power: Literal[1, 2] = setting(1, "power of that norm: 1 official code, 2 paper")
    samples: int = setting(20, "draws of z averaged at test time; 0 takes its mean", Range(0))

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "official": {"alpha_cmi": 0.0005},
        "paper": {"l2r_power": 2},
    }

    @property
    def needs_representation(self) -> bool:
        """The probabilistic layer stands before the predictor."""
        return True

    def prepare(self, net: nn.Module, head: str | None) -> nn.Module:
        """Put the probabilistic layer before the predictor."""
        prepared = copy_net(net)
        predictor = prepared.get_submodule(head) if head is not None else None
        if head is None or not isinstance(predictor, nn.Linear):
            raise TraceError("FedSR needs a net that ends with an nn.Linear layer")
        if "weight" not in dict(predictor.named_parameters(recurse=False)):
            raise TraceError(
                f'FedSR needs a last layer whose weight is not computed, as of "{head}"'
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same projection for every run; the backbone has the seed
            layer = ProbabilisticHead(predictor, self.samples)
        layer.to(predictor.weight)
        if not head:
            return layer
        prepared.set_submodule(head, layer)
        return prepared

    def own(self, work: Work) -> State:
        """Return the class Gaussians and the scale C, as this client left them."""
        names = ("r_mean", "r_raw", "scale")
        if all(name in work.memory for name in names):
            return {name: work.memory[name] for name in names}
        weight = work.model.weights[f"{_place(work)}fedsr_predictor.weight"]
        return {
            "r_mean": torch.zeros_like(weight),
            "r_raw": torch.ones_like(weight),
            "scale": weight.new_ones(()),
        }

    def loss(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return cross-entropy plus L2R of the sampled z plus CMI."""
        projection, predictor = (
            f"{_place(work)}fedsr_{part}" for part in ("projection", "predictor")
        )
        logits, seen = net.watch(batch.x, projection, predictor)
        loss = cross_entropy(logits, batch.y)
        if self.alpha_l2r:
            z = seen[predictor].inputs
            loss = loss + self.alpha_l2r * feature_norm(z, self.l2r_power)
        if self.alpha_cmi:
            mean, sigma = mean_and_sigma(seen[projection].outputs)
            scale, memory = work.memory["scale"], work.memory
            gaussian = memory["r_mean"][batch.y], softplus(memory["r_raw"])[batch.y]
            divergence = class_divergence(scale * mean, scale * sigma, gaussian)
            loss = loss + self.alpha_cmi * divergence
        return loss


def _place(work: Work) -> str:
    """Return where the probabilistic head is, with the dot after it."""
    mark = "fedsr_predictor.weight"
    return next(n.removesuffix(mark) for n in work.model.weights if n.endswith(mark))
