"""Weights computed from parameters entry by entry: `weight * scale`, a transpose, a cast, a mask.

Their axes are those of the parameters, which are cut in their stead. That an entry of zero stays
zero, as the parameters of a cut channel are in a masked net, is for the trial to say.
"""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn

from dapperfl.core.calls import Call
from dapperfl.core.elementwise import keeps, multiplies
from dapperfl.core.layers import RULES
from dapperfl.core.reshaping import moves, replay, reshapes
from dapperfl.core.shadows import spread, varies
from dapperfl.core.taking import picks
from dapperfl.core.tracing import Derived, Trace

Source = tuple[Tensor, tuple[int | None, ...]]  # state, and which of its axes each axis is


def follow_derived(trace: Trace, call: Call) -> None:
    """Remember which state a call's result is derived from, if it is so entry by entry."""
    out, rule, sources = call.out, RULES.get(call.name), list[Source]()
    if isinstance(out, Tensor) and not trace.is_state(out):
        with suppress(RuntimeError, ValueError, IndexError, TypeError):  # then it is not followed
            if rule in (keeps, multiplies):
                sources = list(_entry_by_entry(trace, call, out))
            elif rule in (moves, picks, reshapes):
                sources = list(_moved(trace, call, out))
    for result in call.results():  # what is written into is no longer what it was
        trace.derived.pop(id(result), None)
    if any(state.numel() == out.numel() for state, _ in sources):  # nothing is left out or repeated
        # It goes by the name of the first: not of a gain, and rather not of a mask.
        sources.sort(key=lambda s: (-s[0].numel(), not isinstance(s[0], nn.Parameter)))
        trace.derived[id(out)] = Derived(out, tuple(sources))


def _entry_by_entry(trace: Trace, call: Call, out: Tensor) -> Iterator[Source]:
    """Line up the axes of all operands as broadcasting does; single numbers decide nothing."""
    operands = call.operands()[:1] if RULES[call.name] is keeps else call.operands()
    for operand in operands:
        if operand.numel() == 1:
            continue
        if not trace.is_known(operand):
            raise ValueError("an operand that is not the net's")
        lead = out.dim() - operand.dim()
        same = [None] * lead + [d if operand.shape[d] > 1 else None for d in range(operand.dim())]
        yield from _through(trace, operand, same)


def _moved(trace: Trace, call: Call, out: Tensor) -> Iterator[Source]:
    """See where each axis of an operand goes: it must stay in one piece, or not be there at all."""
    [operand] = call.operands()
    goes: list[int | None] = [None] * out.dim()
    for axis, size in enumerate(operand.shape):
        positions = spread(torch.arange(size), axis, operand.shape)
        places = replay(call, lambda _, p=positions: p)  # type: ignore[misc]
        found = [d for d in range(out.dim()) if varies(places, d)]
        if found:
            [place] = found
            if not torch.equal(places, spread(torch.arange(size), place, out.shape)):
                raise ValueError("entries along an axis are taken apart")
            goes[place] = axis
    yield from _through(trace, operand, goes)


def _through(trace: Trace, operand: Tensor, axes: list[int | None]) -> Iterator[Source]:
    """Go on to the state behind an operand."""
    for source, inner in trace.sources(operand):
        yield source, tuple(None if axis is None else inner[axis] for axis in axes)
