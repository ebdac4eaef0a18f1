"""Recording a step once and playing it again: CUDA graphs, and what makes them trustworthy.

A recorded step replays its kernels on the same addresses and skips all Python. So everything it
reads must stay in its place, and nothing in it may depend on a value that Python looked at. Both
are checked here, not hoped for: a step that reads the round's number, draws random numbers on the
CPU or waits for the GPU is not recorded.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapperfl.core.messages import LocalModel, Work
from dapperfl.core.rng import foreign, foreign_seeded, set_foreign

Replay = Callable[[], None]
TENSORS = ("model", "shared", "memory")  # what of a work a recorded step may read


class CannotRecordError(Exception):
    """A step that would not be the same when it is played again."""


def record(step: Replay, pool: Any) -> Replay:
    """Record a step on the current stream, without running it; return what plays it.

    Args:
        step: What to record.
        pool: The memory of recordings that are never played at the same time; None without a GPU,
            where a step is played by calling it again.

    Raises:
        CannotRecordError: If something in the step cannot be recorded; nothing was run.
    """
    if pool is None:
        return step
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        step()
    except Exception as error:
        with suppress(RuntimeError):  # the recording is void; the first error says why
            graph.capture_end()
        with suppress(RuntimeError):  # torch leaves this to be done where a recording failed
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        raise CannotRecordError(str(error).splitlines()[0]) from error
    graph.capture_end()
    return graph.replay


@contextmanager
def waits(device: torch.device) -> Iterator[list[str]]:
    """Collect the places where something waits for a GPU; other warnings are passed on."""
    found: list[str] = []
    if device.type != "cuda":
        yield found
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for each in seen:
        if "synchronizing CUDA operation" in str(each.message):
            found.append(f"{Path(each.filename).name}:{each.lineno}")
        elif "Synchronization debug mode" not in str(each.message):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


class Recorded:
    """A function of one tensor, recorded for each shape the second time it is seen.

    It must draw nothing and read nothing that moves; where it cannot be recorded it is called.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.seen: set[tuple[int, ...]] = set()
        self.known: dict[tuple[int, ...], tuple[Tensor, Tensor, Replay]] = {}
        self.refused = False
        self.pool: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the function's value, which is good until the next call."""
        key = tuple(x.shape)
        if key in self.seen and key not in self.known and x.is_cuda and not self.refused:
            self._record(key, x)
        self.seen.add(key)
        if key not in self.known:
            return self.function(x)
        inputs, output, play = self.known[key]
        inputs.copy_(x)
        play()
        return output

    def _record(self, key: tuple[int, ...], x: Tensor) -> None:
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        inputs, outputs = x.clone(), []
        try:
            play = record(lambda: outputs.append(self.function(inputs)), self.pool)
        except CannotRecordError:
            self.refused = True
        else:
            self.known[key] = inputs, outputs[0], play


class WatchedWork(Work):
    """A work that notes which of its fields are read."""

    seen: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)


class _WatchedModel(LocalModel):
    """A model that notes when a submodel is asked for, which differs from round to round."""

    seen: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name == "submodel":
            object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)


_FIELDS = frozenset(each.name for each in fields(Work))


def watched(work: Work) -> WatchedWork:
    """Return a copy of a work that notes what is read of it in `seen`."""
    seen: set[str] = set()
    model = _WatchedModel(work.model.weights, work.model.submodel)
    object.__setattr__(model, "seen", seen)
    facts = {name: getattr(work, name) for name in _FIELDS}
    copy = WatchedWork(**{**facts, "model": model})
    object.__setattr__(copy, "seen", seen)
    return copy


class Luck:
    """The random numbers of one client: all global generators, as they stand for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.Generator().get_state()
        self.foreign = foreign()
        self.seed: int | None = None  # of a start that nothing has been drawn since
        self.drew_on_cpu = False
        self.gpu: torch.Generator | None = None
        if device.type == "cuda":
            self.gpu = _generator(device).clone_state()

    def restart(self, seed: int) -> None:
        """Begin as after `torch.manual_seed`."""
        self.seed = seed  # setting up generators takes longer than many a client's draws
        if self.gpu is not None:
            self.gpu.manual_seed(seed)

    def _begun(self) -> None:
        """Set up the generators of the CPU, now that somebody may draw."""
        if self.seed is None:
            return
        self.cpu = torch.Generator().manual_seed(self.seed).get_state()
        with foreign_seeded(self.seed):
            self.foreign = foreign()
        self.seed = None

    def go_on_from(self, other: "Luck") -> None:
        """Begin where another one stands; recordings stay with their generator."""
        self.cpu, self.foreign, self.seed = other.cpu, other.foreign, other.seed
        if self.gpu is not None and other.gpu is not None:
            self.gpu.set_state(other.gpu.get_state())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let torch draw from here, and note whether anything was drawn on the CPU.

        A recording made in this context draws from here whenever it is played.
        """
        self._begun()
        before, others = torch.get_rng_state(), foreign()
        torch.set_rng_state(self.cpu)
        set_foreign(self.foreign)
        try:
            with self._gpu_in_use():
                yield
        finally:
            after, drawn = torch.get_rng_state(), foreign()
            self.drew_on_cpu = not torch.equal(after, self.cpu) or drawn != self.foreign
            self.cpu, self.foreign = after, drawn
            torch.set_rng_state(before)
            set_foreign(others)

    @contextmanager
    def _gpu_in_use(self) -> Iterator[None]:
        if self.gpu is None:
            yield
            return
        ours = _generator(self.device)
        before = ours.graphsafe_get_state()
        ours.graphsafe_set_state(self.gpu)
        try:
            yield
        finally:
            ours.graphsafe_set_state(before)


def _generator(device: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[index]
    return found


def signature(work: Work) -> tuple[Any, ...]:
    """Return the kinds of tensors in a work: a recording fits all works of one signature."""
    found = [
        (part, name, tensor.shape, tensor.dtype, tensor.device)
        for part in TENSORS
        for name, tensor in tensors_of(work, part).items()
    ]
    return tuple(found)


def tensors_of(work: Work, part: str) -> dict[str, Tensor]:
    """Return one part of a work as tensors by name."""
    if part == "model":
        return work.model.weights
    state: dict[str, Tensor] = getattr(work, part)
    return state
