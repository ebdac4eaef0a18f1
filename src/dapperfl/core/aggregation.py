"""Heterogeneous aggregation (Eq. 6, 7), streaming: no recovered model is ever built.

A client's small tensors are folded as they come: sums of weight × value over the entries it kept,
and, beside them, how much weight reached each entry. What is missing comes from the last global
model. Sums are in float64 and rounded once. With weights of few bits, which `Method.weight` gives,
they are exact for float32 models of like size: the order of clients does not matter.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from dapperfl.core.flat import Layout, layout, spread
from dapperfl.core.messages import LocalModel
from dapperfl.core.state import State
from dapperfl.core.submodel import Index, kept_block
from dapperfl.errors import MessageError

Recovery = Literal["paper", "gated", "zero"]


class Aggregator(Protocol):
    """Folds client models one by one into a new global state."""

    def add(self, model: LocalModel, weight: float) -> None:
        """Fold one client's model."""

    def result(self) -> State:
        """Return the new global state."""


def is_averaged(tensor: Tensor) -> bool:
    """Tell whether a tensor is averaged, buffers included; integers come from the reference."""
    return tensor.is_floating_point()


class WeightedSums(ABC):
    """What both means share: sums over kept entries, and the weight that reached each entry.

    Args:
        reference: The last global state W^{t-1}.
        flat: Fold the whole state at once, laid end to end: the same sums in a few large steps,
            which a GPU wants; by default where the reference is on one.
    """

    def __init__(self, reference: State, *, flat: bool | None = None) -> None:
        self.reference = reference
        self.weight = 0.0
        self.sums: State = {}
        self.reached: State = {}  # with size 1 on axes that were never cut
        self.long: _Long | None = None  # instead of these two, where all are folded at once
        self.averaged = [name for name, tensor in reference.items() if is_averaged(tensor)]
        kinds = {(reference[name].dtype, reference[name].device) for name in self.averaged}
        on_gpu = any(device.type == "cuda" for _, device in kinds)
        self.flat = len(kinds) == 1 and (on_gpu if flat is None else flat)

    def add(self, model: LocalModel, weight: float) -> None:
        """Fold one client's model: its small tensors, and nothing else is kept.

        Raises:
            MessageError: If the weight is not positive and finite, a tensor is missing or does
                not have the submodel's shape.
        """
        if not (isfinite(weight) and weight > 0):
            raise MessageError(f"the weight of an update must be positive and finite, not {weight}")
        for name in self.averaged:  # look at everything before anything is changed
            if name not in model.weights:
                raise MessageError(f'"{name}" is missing from the update')
            model.submodel.check_shape(name, model.weights[name])
        self.weight += weight
        known = model.submodel.graph.axes
        if self.flat and all(name in known for name in self.averaged):
            self._fold_all(model, weight)
            return
        for name in self.averaged:
            self._fold(name, model, weight)

    def _fold(self, name: str, model: LocalModel, weight: float) -> None:
        full, index = self.reference[name], model.submodel.indices.get(name, ())
        if name not in self.sums:
            axes = model.submodel.graph.axes.get(name, (None,) * full.dim())
            sizes = [1 if ids is None else n for n, ids in zip(full.shape, axes, strict=True)]
            self.sums[name] = torch.zeros_like(full, dtype=torch.float64)
            self.reached[name] = full.new_zeros(sizes, dtype=torch.float64)
        total, reached = self.sums[name], self.reached[name]
        small = model.weights[name].to(total.device)
        if index:
            _add_block(total, index, small, weight)
            reached[kept_block(index, reached)] += weight
        else:
            total.add_(small, alpha=weight)
            reached.add_(weight)

    def _fold_all(self, model: LocalModel, weight: float) -> None:
        device = self.reference[self.averaged[0]].device
        plan = layout(model.submodel.graph, tuple(self.averaged), device)
        if self.long is None:
            zeros = torch.zeros(2, plan.entries, dtype=torch.float64, device=device)
            self.long = _Long(plan, *zeros)
        small, mask = plan.join(model.weights), plan.mask(model.submodel)
        if mask is None:
            self.long.total.add_(small, alpha=weight)
            self.long.reached.add_(weight)
        else:
            self.long.total.add_(spread(small, mask), alpha=weight)
            self.long.reached.add_(mask, alpha=weight)

    @abstractmethod
    def _combined(self, sums: "_Sums") -> Tensor:
        """Turn sums into new values, in double precision."""

    def _recovers(self, name: str) -> bool:
        """Tell whether the pruned entries of a tensor count as what they were."""
        return True

    def _covers(self, name: str) -> bool:
        """Tell whether an entry of a tensor is averaged over those who hold it alone."""
        return False

    def result(self) -> State:
        """Return the new global state; the sums are used up.

        Raises:
            MessageError: If nothing was added.
        """
        if not self.weight:
            raise MessageError("no update was added, so there is nothing to average")
        if self.long is not None:
            return self._result_of_all(self.long)
        state = {}
        for name, tensor in self.reference.items():
            if name in self.sums:
                # A model less while the result grows.
                total, reached = self.sums.pop(name), self.reached.pop(name)
                how = self._recovers(name), self._covers(name)
                sums = _Sums(total, reached, tensor.double(), *how)
                state[name] = self._combined(sums).to(tensor.dtype)
            else:
                state[name] = tensor.clone()
        return state

    def _result_of_all(self, long: "_Long") -> State:
        reference = long.plan.join(self.reference)
        recovered = long.plan.repeat([self._recovers(name) for name in long.plan.shapes])
        covers = [self._covers(name) for name in long.plan.shapes]
        covered = long.plan.repeat(covers) if any(covers) else False
        sums = _Sums(long.total, long.reached, reference.double(), recovered, covered)
        found = long.plan.split(self._combined(sums).to(reference.dtype), long.plan.shapes)
        self.long = None
        return {n: found[n] if n in found else t.clone() for n, t in self.reference.items()}


@dataclass(frozen=True)
class _Long:
    """The sums of all tensors, laid end to end."""

    plan: Layout
    total: Tensor
    reached: Tensor


@dataclass(frozen=True)
class _Sums:
    """What came in for some entries, and what they were before."""

    total: Tensor  # weight × value, summed
    reached: Tensor  # the weight of those who hold an entry
    reference: Tensor
    recovered: Tensor | bool  # which of them count as that where they are pruned
    covered: Tensor | bool  # which of them are averaged over those who hold them alone

    def over_holders(self) -> Tensor:
        """Average over those who hold an entry; what nobody holds is what it was."""
        reached = self.reached.expand_as(self.total)
        mean = self.total / reached.clamp_min(torch.finfo(torch.float64).tiny)
        return torch.where(reached > 0, mean, self.reference)


class RecoveredMean(WeightedSums):
    """The paper's aggregation: recover pruned entries (Eq. 6), then average by weight (Eq. 7).

    Args:
        reference: The last global state W^{t-1}.
        recovery: What a pruned entry counts as. "paper": its value in the reference. "gated": the
            same, but the weight and bias of a pruned channel's batch or group norm count as
            zero, for the channel *is* silent in that client's net; where no norm scales a channel,
            the mean is over those who hold an entry. "zero": zero. Tensors that do not learn are
            recovered in any case: they stay what they are.
        flat: See `WeightedSums`.
    """

    def __init__(
        self, reference: State, recovery: Recovery = "paper", *, flat: bool | None = None
    ) -> None:
        if recovery not in get_args(Recovery):
            raise ValueError(f'unknown recovery "{recovery}"; choose one of {get_args(Recovery)}')
        super().__init__(reference, flat=flat)
        self.recovery = recovery
        self.gates: frozenset[str] = frozenset()
        self.frozen: frozenset[str] = frozenset()
        self.unscaled: frozenset[str] = frozenset()

    def add(self, model: LocalModel, weight: float) -> None:
        """Fold one client's model; see `WeightedSums.add`."""
        super().add(model, weight)
        graph = model.submodel.graph
        self.gates, self.frozen, self.unscaled = graph.gates, graph.frozen, graph.unscaled

    def _recovers(self, name: str) -> bool:
        if self.recovery == "zero":
            return name in self.frozen
        return self.recovery == "paper" or name not in self.gates

    def _covers(self, name: str) -> bool:
        return self.recovery == "gated" and name in self.unscaled

    def _combined(self, sums: _Sums) -> Tensor:
        recovered = torch.as_tensor(sums.recovered, device=sums.total.device)
        missing = (self.weight - sums.reached) * recovered
        over_holders = None if sums.covered is False else sums.over_holders()
        mean = sums.total.addcmul_(sums.reference, missing).div_(self.weight)
        if over_holders is None:
            return mean
        covered = torch.as_tensor(sums.covered, device=mean.device)
        return torch.where(covered, over_holders, mean)


class CoverageMean(WeightedSums):
    """Divide by the weight that reached each entry; entries nobody holds keep the reference."""

    def _combined(self, sums: _Sums) -> Tensor:
        return sums.over_holders()


def _add_block(total: Tensor, index: Index, small: Tensor, weight: float) -> None:
    """Add weight × small to the kept block of a full tensor, in place.

    Rows are added whole, with zeros where a row lost entries: several times faster than picking
    the block entry by entry.
    """
    cut = {axis: kept.to(total.device) for axis, kept in index}
    for axis in sorted(cut.keys() - {0}, reverse=True):
        shape = list(small.shape)
        shape[axis] = total.shape[axis]
        small = small.new_zeros(shape).index_copy_(axis, cut[axis], small)
    if 0 in cut:
        total.index_add_(0, cut[0], small.to(torch.float64), alpha=weight)
    else:
        total.add_(small, alpha=weight)
