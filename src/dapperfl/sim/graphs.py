"""Clients side by side on one GPU: recorded steps, several streams, one wait a client.

The host queues an epoch of every client of a wave before it looks at any result, each client on a
stream of its own, so that the GPU always has several small nets to fill it with. What a method does
between two epochs is short, and much waits for it: it goes to a stream that the GPU serves first.
"""

import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    LeftOut,
    Moments,
    StatisticsTask,
    Work,
)
from dapperfl.core.state import State, blocks_of
from dapperfl.runtime.frozen import FrozenNets
from dapperfl.runtime.local import LocalNet, Trade
from dapperfl.runtime.precision import Precision, autocast
from dapperfl.runtime.statistics import (
    batch_moments,
    finite,
    measure_moments,
    normalising_by_batch,
)
from dapperfl.runtime.training import (
    ClientData,
    Part,
    Steps,
    Trained,
    client_round,
    dropout_seed,
)
from dapperfl.sim.capture import Recorded
from dapperfl.sim.loop import answer, with_memory
from dapperfl.sim.reasons import left_out
from dapperfl.sim.slots import SlotNet, Slots

LOOKERS = 3  # nets that measure statistics side by side
BRANCHES = 10  # clients side by side; more of them hold more memory and fill the GPU no better
# Who goes on first: those with most left to queue. Training waits for no number of the GPU's.
ORDER: Mapping[Part, int] = {"train": 0, "act": 1, "report": 2}
_Look = Callable[["weakref.ref[nn.Module]", Precision, Tensor], Tensor]


@dataclass
class GraphRunner:
    """Trains waves of clients in slots, each on a stream of its own.

    Its memory grows with the number of shapes and branches, not with the number of clients. Without
    a GPU it does the same things one after another, which is how it is tested anywhere.
    """

    trade: Trade
    data: Mapping[int, ClientData]
    seed: int
    branches: int = BRANCHES
    memories: MutableMapping[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set up the streams and the slots; nothing is built before it is needed."""
        trade = self.trade
        self.device = next(trade.template.parameters()).device
        self.slots = Slots(trade)
        self.nets = [
            FrozenNets(trade.template, trade.precision, normalising_by_batch, turns=trade.turns)
            for _ in range(LOOKERS)
        ]
        self.recorded: WeakKeyDictionary[nn.Module, Recorded] = WeakKeyDictionary()
        self.streams: list[torch.cuda.Stream] = []
        self.urgent: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self.streams = [_stream(self.device) for _ in range(self.branches)]
            self.urgent = _stream(self.device, priority=-1)  # lower numbers come first

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        """Train every assigned model; a client that fails is left out with its reason."""
        work = iter(assignments)
        while wave := list(islice(work, self.branches)):
            with uncollected():
                yield from self._train_wave(wave)

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        """Measure batch-norm moments of the given models, with recorded passes."""
        work = iter(tasks)
        while wave := list(islice(work, self.branches)):
            # All are queued before the first is waited for.
            queued = [
                answer(task.device, partial(self._measure, task, index % LOOKERS))
                for index, task in enumerate(wave)
            ]
            for stream in self.streams[:LOOKERS]:
                torch.cuda.current_stream(self.device).wait_stream(stream)
            for found in queued:
                if isinstance(found, Moments):
                    yield answer(found.device, partial(finite, found))
                else:
                    yield found

    def _measure(self, task: StatisticsTask, looker: int) -> Moments:
        with on_stream(self.streams[looker] if self.streams else None) as server:
            net = self.nets[looker].holding(task.model)
            look = self._recorded(net, _moments)
            found = measure_moments(net, task, self.data[task.device.id], look)
            hand_over(found.means | found.second, server)
        return found

    def looking_through(self, net: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return a recording of the net for each shape of batches."""
        look = self._recorded(net, _logits)

        def call(x: Tensor) -> Tensor:
            stream = self.streams[0] if self.streams else None
            with on_stream(stream) as server:
                found = look(x).clone()
            if server is not None and stream is not None:
                server.wait_stream(stream)
            return found

        return call

    def _recorded(self, net: nn.Module, look: _Look) -> Recorded:
        if net not in self.recorded:
            # The recording must not keep the net, or neither of them would ever go.
            self.recorded[net] = Recorded(partial(look, weakref.ref(net), self.trade.precision))
        return self.recorded[net]

    def _train_wave(self, wave: list[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        clients = [self._client(index, each) for index, each in enumerate(wave)]
        # The longest begin first: the others fill the gaps.
        able = [each for each in clients if each.reply is None]
        running = deque(sorted(able, key=lambda each: -each.work.device.num_samples))
        told = 0
        while told < len(clients):
            while told < len(clients) and (reply := clients[told].reply) is not None:
                told += 1
                yield reply  # the server folds it while the GPU goes on
            if running:
                client = _first_ready(running)
                running.remove(client)
                client.go_on()
                if client.reply is None:
                    running.append(client)

    def _client(self, index: int, assignment: Assignment) -> "_Client":
        work = with_memory(assignment, self.memories.get(assignment.device.id, {}))
        return _Client(self, work, self.streams[index] if self.streams else None)


class _Client:
    """One client of a wave, on its stream."""

    def __init__(self, runner: GraphRunner, work: Work, stream: torch.cuda.Stream | None) -> None:
        self.runner, self.work, self.stream = runner, work, stream
        self.reply: ClientUpdate | LeftOut | None = None
        self.local: SlotNet | None = None
        self.coming: Part = "train"
        data = answer(work.device, partial(runner.data.__getitem__, work.device.id))
        if isinstance(data, LeftOut):
            self.reply = data
            return
        self.steps: Steps = client_round(
            runner.trade.method, work, data, seed=runner.seed, start=self._start
        )

    def _start(self, work: Work, own: State) -> LocalNet:
        self.local = SlotNet(self.runner.slots, dropout_seed(self.runner.seed, work), work, own)
        return self.local

    def ready(self) -> bool:
        """Tell whether going on would not have to wait for the GPU."""
        return self.stream is None or self.coming == "train" or bool(self.stream.query())

    def go_on(self) -> None:
        """Run until the next pause; the last part leaves a reply."""
        with self._place() as server:
            try:
                self.coming = next(self.steps)
                return
            except StopIteration as end:
                self.reply = self._finished(end.value, server)
            except Exception as error:
                self.reply = left_out(self.work.device, error)
            if self.local is not None:
                self.local.close()

    @contextmanager
    def _place(self) -> Iterator[torch.cuda.Stream | None]:
        """Queue the coming part on the client's stream, or before everything else."""
        urgent = self.runner.urgent
        if self.stream is None or urgent is None or self.coming != "act":
            with on_stream(self.stream) as server:
                yield server
            return
        urgent.wait_stream(self.stream)
        try:
            with on_stream(urgent) as server:
                yield server
        finally:
            self.stream.wait_stream(urgent)

    def _finished(self, trained: Trained, server: torch.cuda.Stream | None) -> ClientUpdate:
        update = trained.update
        if self.stream is not None:
            self.stream.synchronize()
        hand_over(update.model.weights | update.shared, server)
        hand_over(trained.memory, server)
        if trained.memory:
            self.runner.memories[update.device.id] = trained.memory
        return update


def _stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def _first_ready(running: Iterable[_Client]) -> _Client:
    """Wait until somebody can go on; of several, the one with most left to queue is first."""
    while True:
        ready = [client for client in running if client.ready()]
        if ready:
            return min(ready, key=lambda client: ORDER[client.coming])


@contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[torch.cuda.Stream | None]:
    """Queue on a stream what comes after all that the current one, which is yielded, has queued."""
    if stream is None:
        yield None
        return
    server = torch.cuda.current_stream(stream.device)
    stream.wait_stream(server)
    with torch.cuda.stream(stream):
        yield server


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's collector wait: it would stop the host, and with it the GPU, many times."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def hand_over(state: State, server: torch.cuda.Stream | None) -> None:
    """Keep the memory of finished tensors from being used again while the server reads them."""
    if server is None:
        return
    for block in blocks_of(state.values()):
        if block.is_cuda:
            block.record_stream(server)


def _moments(net: "weakref.ref[nn.Module]", precision: Precision, x: Tensor) -> Tensor:
    module = net()
    assert module is not None
    return batch_moments(module, x, precision)


def _logits(net: "weakref.ref[nn.Module]", precision: Precision, x: Tensor) -> Tensor:
    module = net()
    assert module is not None
    with torch.no_grad(), autocast(precision, x.device):
        logits: Tensor = module(x)
    return logits
