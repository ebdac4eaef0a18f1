"""A net that stays in its place, with its optimiser, so that its steps can be recorded.

A level's net has the same shape in every round; only its weights and channels change. So a net, its
optimiser and all that a step reads are built once and kept, clients' weights are copied in, and a
step can be recorded (`capture`) the second time it is seen and played from then on.
"""

import logging
from contextlib import nullcontext
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch

from dapperfl.core.messages import LocalModel, Work
from dapperfl.core.net import Batch, Net
from dapperfl.core.state import State, overwrite
from dapperfl.core.submodel import Submodel
from dapperfl.errors import RunError
from dapperfl.runtime.local import Trade
from dapperfl.runtime.optimiser import carried_momentum, sgd
from dapperfl.runtime.turning import laid_out
from dapperfl.sim.belongings import Belongings
from dapperfl.sim.capture import (
    TENSORS,
    CannotRecordError,
    Luck,
    record,
    tensors_of,
    waits,
    watched,
)
from dapperfl.sim.casts import Casts
from dapperfl.sim.counters import Counters
from dapperfl.sim.packed import Packed
from dapperfl.sim.recordings import Recordings, Step

SIGNATURES = 4  # kinds of work whose recordings a slot keeps
logger = logging.getLogger(__name__)


class Slot:
    """One net of one shape, with its optimiser, at addresses that never change."""

    def __init__(self, trade: Trade, submodel: Submodel, own: State) -> None:
        self.trade = trade
        self.module = laid_out(submodel.shrink(trade.template).train(), trade.turns)
        self.things = Belongings(self.module)
        self.net = Net(self.module, submodel.graph.head)
        self.device = next(self.module.parameters()).device
        turned = trade.turned
        named = self.module.state_dict(keep_vars=True)
        first = {id(tensor): name for name, tensor in reversed(named.items())}
        self.names = {name: first[id(tensor)] for name, tensor in named.items()}  # tied ones too
        alone = {n: t for n, t in named.items() if self.names[n] == n}
        self.state = Packed(alone, channels_last=turned)
        self.rest = {n: t for n, t in self.module.named_buffers() if n not in named}
        self.own = {name: t.detach().clone().requires_grad_() for name, t in own.items()}
        fused = turned and self.device.type == "cuda"
        self.optimiser = sgd(self.module, self.own, trade.settings, fused=fused)
        parameters = dict(self.module.named_parameters())
        # Laid out as the weights are, with buffers, so that one mask cuts both.
        moving = {n: t for n, t in alone.items() if n in parameters or t.is_floating_point()}
        zeros = {n: torch.zeros_like(t) for n, t in moving.items()}
        self.momentum = Packed(zeros, channels_last=turned)
        self.own_momentum = {name: torch.zeros_like(t) for name, t in self.own.items()}
        for name, parameter in parameters.items():
            self.optimiser.state[parameter]["momentum_buffer"] = self.momentum.views[name]
        for name, buffer in self.own_momentum.items():
            self.optimiser.state[self.own[name]]["momentum_buffer"] = buffer
        self.total = torch.zeros((), device=self.device)
        self.counters = Counters(self.module)
        together = trade.precision == "bf16" and self.state.flat
        self.casts = Casts(self.module, self.state) if together else None
        self.luck = Luck(self.device)
        self.client = -1  # who had it last
        self.recorded: dict[tuple[Any, ...], Recordings] = {}
        self.pool: Any = None
        if self.device.type == "cuda":
            self.pool = torch.cuda.graph_pool_handle()
            self.free_at = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def load(self, model: LocalModel, own: State) -> None:
        """Copy a client's weights in; see `fill`."""
        if not all(map(attrgetter("training"), self.things.parts)):
            self.module.train()  # a report may have left it in evaluation mode
        self.things.put_back()  # a step that failed may have left others
        self.things.take_back(self.things.first)
        if self.device.type == "cpu":  # elsewhere recorded steps read them where they are
            self.things.forget()
        self.fill(model.weights)
        if self.rest:
            overwrite(self.rest, model.submodel.rest(self.trade.template))
        overwrite(self.own, own)
        self.counters.steps = 0  # what an earlier client counted went with its weights

    def fill(self, weights: State) -> None:
        """Put other weights in the place of these.

        Raises:
            RunError: They are not those of this net; a plain one would not take them either.
        """
        if weights.keys() != self.names.keys():
            raise RunError("the model does not have the tensors of the net")
        self.state.load(weights)

    def forget_momentum(self) -> None:
        """Let a client begin without momentum."""
        self.momentum.zero()
        for buffer in self.own_momentum.values():
            buffer.zero_()

    def carry_momentum(self, old: "Slot", before: Submodel, after: Submodel) -> None:
        """Go on with the momentum that a net has in its old slot, which may be this one."""
        if not (before.kept or after.kept):
            return
        if self.momentum.flat and not before.kept and self is not old:
            self.momentum.cut_from(old.momentum, after)
            return
        given = {name: old.momentum.views[name] for name in after.graph.parameters}
        given = carried_momentum(given, before, after, self.trade.template)
        overwrite(self.momentum.views, given)

    def weights(self) -> State:
        """Return a copy of the net's state."""
        copied = self.state.copy()
        return {name: copied[first] for name, first in self.names.items()}

    def bind(self, work: Work, key: tuple[Any, ...]) -> Recordings:
        """Find the recordings that fit a work of a signature, and show them its tensors."""
        found = self.recorded.pop(key, None) or Recordings(self.own)
        found.refresh(work)
        self.recorded[key] = found
        while len(self.recorded) > SIGNATURES:
            del self.recorded[next(iter(self.recorded))]
        return found

    def step(self, batch: Batch, work: Work, recorded: Recordings) -> None:
        """Take one step and add its loss to the total."""
        key = (tuple(batch.x.shape), batch.x.dtype)
        known = recorded.steps.get(key)
        if known is None:
            recorded.steps[key] = self._first_step(batch, work)
            return
        torch._foreach_copy_(list(known.inputs), list(batch))
        if known.play is None and not known.refused:
            self._record(known, recorded, work)
        if known.play is not None:
            self.counters.steps += self.pool is not None  # on a GPU recorded without the counters
            known.play()
        else:  # a net that skips layers at random counts otherwise in every step
            with self.luck.in_use():
                self._take(known.inputs, work)
            self.things.put_back()

    def _first_step(self, batch: Batch, work: Work) -> Step:
        """Take a step as it is, and see whether it could be recorded."""
        x = batch.x
        if self.trade.turned and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        inputs = Batch(x.clone(), batch.y.clone())
        looked_at = watched(work)
        with self.counters.watched(), self.luck.in_use(), waits(self.device) as places:
            self._take(inputs, looked_at)
        replaced = self.things.put_back()
        if self.counters.disagree:  # recordings made before do not count
            for each in self.recorded.values():
                each.steps.clear()
        step = Step(inputs, frozenset(looked_at.seen))
        if replaced:
            self._refuse(step, f'it puts another tensor in the place of "{replaced[0]}"')
        elif obstacle := self._obstacle(step, work, places):
            self._refuse(step, obstacle)
        return step

    def _obstacle(self, step: Step, work: Work, waited: list[str]) -> str:
        """Say why a step cannot be recorded; empty if it may be."""
        if others := step.reads - set(TENSORS):
            return f"its loss reads {', '.join(sorted(others))} of the work"
        if waited:
            return f"it waits for the GPU ({waited[0]})"
        if self.luck.drew_on_cpu:
            return "it draws random numbers on the CPU"
        if any(t.device != self.device for p in step.reads for t in tensors_of(work, p).values()):
            return "its loss reads tensors that are not on the GPU"
        return ""

    def _record(self, step: Step, recorded: Recordings, work: Work) -> None:
        static = watched(recorded.static(work, step.reads))
        before = self.things.notes()
        try:
            with self.luck.in_use(), self.counters.hidden():
                play = record(partial(self._take, step.inputs, static), self.pool)
            if not static.seen <= step.reads:
                raise CannotRecordError("it does not read the same every time")
            if self.things.notes() != before:
                raise CannotRecordError("the net counts in Python; a buffer could be recorded")
        except CannotRecordError as error:
            self.things.take_back(before)
            self._refuse(step, str(error))
            if self.pool is not None:
                self.pool = torch.cuda.graph_pool_handle()
        else:
            step.play = play

    def _refuse(self, step: Step, reason: str) -> None:
        step.refused = True
        if self.device.type == "cuda":
            _tell_refused(type(self.trade.method).__name__, reason)

    def _take(self, batch: Batch, work: Work) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        with self.casts.in_use() if self.casts else nullcontext():
            loss = self.trade.objective(self.net, batch, work)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.total.add_(loss.detach())


@cache  # once for the same reason, not once a step
def _tell_refused(method: str, reason: str) -> None:
    logger.warning("steps of %s are not recorded but run one by one: %s", method, reason)
