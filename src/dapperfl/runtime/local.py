"""A client's net while it trains: where its weights are, and how it takes a step."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from dapperfl.core import styles
from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import LocalModel, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.state import State, snapshot
from dapperfl.core.submodel import Submodel, copy_net
from dapperfl.core.trial import first_line, private_rng
from dapperfl.errors import ConfigError, RunError
from dapperfl.methods.base import Method
from dapperfl.runtime.hooks import loss_of
from dapperfl.runtime.optimiser import TrainSettings, carried_momentum, momentum_of, sgd
from dapperfl.runtime.precision import Precision, autocast
from dapperfl.runtime.shift import shifted
from dapperfl.runtime.turning import laid_out


class LocalNet(Protocol):
    """The net of one client in one round; it becomes smaller when the method says so."""

    work: Work  # what hooks see; `own` is in its memory
    own: State  # what the client trains beside the net

    @property
    def submodel(self) -> Submodel:
        """Which channels the net has now."""

    @property
    def net(self) -> Net:
        """The net as it is now."""

    def run_epoch(self, batches: Iterable[Batch]) -> Tensor:
        """Take one step a batch; return the mean loss, which need not be known yet."""

    def model(self) -> LocalModel:
        """Return a copy of the weights as they are now."""

    def follow(self, before: LocalModel, after: LocalModel) -> None:
        """Go on with the model a method made of the one before; momentum goes with it."""


@dataclass(frozen=True)
class Trade:
    """What does not change from client to client: method, full net, optimiser, number format."""

    method: Method
    template: nn.Module
    settings: TrainSettings
    precision: Precision = "fp32"
    turns: bool = True  # whether the net can hold channels last (`turning.can_turn`)

    @property
    def turned(self) -> bool:
        """Whether filters of nets that stay are turned, as all precisions below fp32 want it."""
        return self.turns and self.precision != "fp32"

    def objective(self, net: Net, batch: Batch, work: Work) -> Tensor:
        """Return the method's loss of a batch, in this number format."""
        if self.method.restyle and styles.ALL in work.shared:
            told = work.shared
            batch = styles.restyled(batch, told[styles.ALL], told[styles.SHARE])
        with autocast(self.precision, batch.x.device), shifted(net.module, self.settings.shift):
            return loss_of(self.method, net, batch, work)


def prepared(
    method: Method,
    net: nn.Module,
    example: Tensor,
    classes: int = 1,
    precision: Precision = "fp32",
) -> tuple[nn.Module, ChannelGraph]:
    """Return the net that a method trains, where the example is, and the net's graph.

    Raises:
        TraceError: If the net cannot be traced, or does not take such pictures.
        ConfigError: If it does not return a logit for each class at least, has no representation
            where one is needed, or does not run in this number format.
    """
    plain = ChannelGraph.trace(net.to(example.device), example)
    if method.needs_representation and plain.head is None:
        raise ConfigError(
            f"{type(method).__name__} needs the representation before the last layer, but the "
            "net's logits are not made by an nn.Linear layer; end the net with one, or choose a "
            "method or settings without it, such as fedavg or, for dapperfl, method.gamma=0"
        )
    ready = method.prepare(net, plain.head).to(example.device)
    _check_logits(ready, example, classes, precision)
    return ready, plain if ready is net else ChannelGraph.trace(ready, example)


def _check_logits(net: nn.Module, example: Tensor, classes: int, precision: Precision) -> None:
    """Refuse a net whose answer no method can learn from, in training or in evaluation."""
    batch = example[:1].repeat(2, *[1] * (example.dim() - 1))
    for training in (False, True):
        mode = "training" if training else "evaluation"
        try:
            cast = autocast(precision, example.device)
            with private_rng(example.device), torch.set_grad_enabled(training), cast:
                out = copy_net(net).train(training)(batch)
        except Exception as error:  # whatever a user's forward may raise
            where, way_on = mode, ""
            if precision == "bf16":
                where, way_on = f"{mode} in bf16", "; try engine.precision=fp32"
            raise ConfigError(
                f"the net does not run in {where}, with what the method adds to it: "
                f"{first_line(error)}{way_on}"
            ) from error
        if not isinstance(out, Tensor) or out.dim() != 2:
            found = tuple(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ConfigError(
                f"the net must return logits, (batch, classes), but in {mode} it returns {found}; "
                "wrap it in a module that returns them alone"
            )
        if out.shape[1] < classes:
            raise ConfigError(
                f"the net returns {out.shape[1]} logits, but there are {classes} classes; give its "
                "last layer as many outputs (a factory may name num_classes)"
            )
    _check_gradient(out)


def _check_gradient(logits: Tensor) -> None:
    """Refuse a net that nothing can be learnt through."""
    if not logits.requires_grad:
        raise ConfigError(
            "the net cannot be trained: its logits depend on no parameter that wants a gradient; "
            "set requires_grad where it is to learn, and do not detach them"
        )
    try:
        logits.sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ConfigError(f"the net cannot be trained: {first_line(error)}") from error


class PlainNet:
    """A net built for this client and thrown away after it: the meaning of every faster one."""

    def __init__(self, trade: Trade, work: Work, own: State) -> None:
        self.own = {name: t.detach().clone().requires_grad_() for name, t in own.items()}
        self.work = replace(work, memory={**work.memory, **self.own})
        self.trade = trade
        self._build(work.model)
        self.optimiser = sgd(self.module, self.own, trade.settings, fused=False)

    def _build(self, model: LocalModel) -> None:
        self.submodel = model.submodel
        self.module = model.submodel.shrink(self.trade.template)
        laid_out(self.module, self.trade.turns)
        self.module.load_state_dict(model.weights)
        self.module.train()
        self.net = Net(self.module, model.submodel.graph.head)

    def run_epoch(self, batches: Iterable[Batch]) -> Tensor:
        """Take one step a batch; return the mean loss."""
        losses = [self._step(batch) for batch in batches]
        if not losses:
            raise RunError("the client has no training data")
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total / len(losses)

    def _step(self, batch: Batch) -> Tensor:
        loss = self.trade.objective(self.net, batch, self.work)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.detach()

    def model(self) -> LocalModel:
        """Return a copy of the weights as they are now."""
        return LocalModel(snapshot(self.module), self.submodel)

    def follow(self, before: LocalModel, after: LocalModel) -> None:
        """Go on with another model; a new submodel makes net and momentum smaller."""
        if after.submodel is before.submodel:
            self.module.load_state_dict(after.weights)
            return
        old = dict(self.module.named_parameters())
        momentum = momentum_of(old.items(), self.optimiser)
        template = self.trade.template
        momentum = carried_momentum(momentum, before.submodel, after.submodel, template)
        self._build(after)
        for parameter in old.values():
            self.optimiser.state.pop(parameter, None)
        self.optimiser.param_groups[0]["params"] = list(self.module.parameters())
        for name, parameter in self.module.named_parameters():
            if name in momentum:
                self.optimiser.state[parameter]["momentum_buffer"] = momentum[name].clone()
