"""Slots lent to clients: nets that stay, filled with one client after another."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dapperfl.core.messages import LocalModel, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.state import State, overwrite
from dapperfl.core.submodel import Submodel
from dapperfl.errors import RunError
from dapperfl.runtime.local import Trade
from dapperfl.sim.capture import signature
from dapperfl.sim.slot import Slot

IDLE = 128  # nets that are kept; a method of one's own may cut to other shapes in every round


@dataclass
class Slots:
    """All slots of a run, each lent to one client at a time."""

    trade: Trade
    idle: dict[tuple[Any, ...], list[Slot]] = field(default_factory=dict)

    def take(self, submodel: Submodel, own: State, client: int) -> Slot:
        """Lend a slot of the right shape, if possible the one the client had before.

        That one has recorded steps of the client's batch sizes. If all are in use, build one more.
        """
        key = _key(submodel, own)
        idle = self.idle.get(key)
        if idle is None:
            slot = Slot(self.trade, submodel, own)
            slot.client = client
            return slot
        slot = next((each for each in idle if each.client == client), idle[0])
        idle.remove(slot)
        if not idle:
            del self.idle[key]
        slot.client = client
        if slot.device.type == "cuda":
            torch.cuda.current_stream(slot.device).wait_event(slot.free_at)
        return slot

    def give_back(self, slot: Slot, submodel: Submodel) -> None:
        """Take a slot back when all that was asked of it has been queued."""
        if slot.device.type == "cuda":
            slot.free_at.record(torch.cuda.current_stream(slot.device))
        key = _key(submodel, slot.own)
        self.idle[key] = [*self.idle.pop(key, []), slot]  # those used longest ago come first
        while sum(map(len, self.idle.values())) > IDLE:
            self._let_one_go()

    def _let_one_go(self) -> None:
        """Give up a net of the shape that was used longest ago."""
        key, (old, *others) = next(iter(self.idle.items()))
        if old.device.type == "cuda":
            old.free_at.synchronize()  # its memory may be anybody's from here on
        if others:
            self.idle[key] = others  # where it stood
        else:
            del self.idle[key]


def _key(submodel: Submodel, own: State) -> tuple[Any, ...]:
    return (submodel.signature, *((name, tensor.shape) for name, tensor in own.items()))


class SlotNet:
    """A client's net in a borrowed slot; when it becomes smaller, it moves to a smaller one."""

    def __init__(self, slots: Slots, seed: int, work: Work, own: State) -> None:
        self.slots = slots
        self.slot = slots.take(work.model.submodel, own, work.device.id)
        self.submodel = work.model.submodel
        try:
            self.slot.load(work.model, own)
            self.slot.forget_momentum()
            self.slot.luck.restart(seed)
            self.own = self.slot.own
            self.work = replace(work, memory={**work.memory, **self.own})
            self.kind = signature(self.work)  # a smaller net changes nothing about it
            self.recorded = self.slot.bind(self.work, self.kind)
        except BaseException:
            self.close()  # nobody else knows yet that it is lent
            raise

    @property
    def net(self) -> Net:
        """The net as it is now."""
        return self.slot.net

    def run_epoch(self, batches: Iterable[Batch]) -> Tensor:
        """Take one step a batch; return the mean loss."""
        self.slot.total.zero_()
        steps = 0
        for batch in batches:
            self.slot.step(batch, self.work, self.recorded)
            steps += 1
        if not steps:
            raise RunError("the client has no training data")
        self.slot.counters.settle()
        return self.slot.total / steps

    def model(self) -> LocalModel:
        """Return a copy of the weights as they are now."""
        return LocalModel(self.slot.weights(), self.submodel)

    def follow(self, before: LocalModel, after: LocalModel) -> None:
        """Go on with another model; a new submodel means another slot."""
        old = self.slot
        if after.submodel is before.submodel:
            old.fill(after.weights)
            return
        if after.submodel.signature != before.submodel.signature:
            self.slot = self.slots.take(after.submodel, self.own, self.work.device.id)
        self.submodel = after.submodel  # what `close` gives back, whatever fails from here on
        try:
            if self.slot is not old:
                overwrite(self.slot.own_momentum, old.own_momentum)
                self.slot.luck.go_on_from(old.luck)
            self.slot.carry_momentum(old, before.submodel, after.submodel)
            self.slot.load(after, self.own)
        finally:
            if self.slot is not old:
                self.slots.give_back(old, before.submodel)
        self.own = self.slot.own
        self.work = replace(self.work, memory={**self.work.memory, **self.own})
        self.recorded = self.slot.bind(self.work, self.kind)

    def close(self) -> None:
        """Give the slot back."""
        self.slots.give_back(self.slot, self.submodel)
