"""Runs the clients of a round on real devices: a `Runner` like any other, at the end of a wire."""

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flwr.app import Array, RecordDict
from torch import Tensor, nn

from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    Device,
    LeftOut,
    Moments,
    StatisticsTask,
)
from dapperfl.core.net import Batch
from dapperfl.core.state import State
from dapperfl.errors import MessageError
from dapperfl.flower.kit import reply_limit
from dapperfl.flower.letters import letter, opened, part, refused
from dapperfl.flower.post import Came, Post, Silence
from dapperfl.flower.roster import TERMS, Roster
from dapperfl.runtime.guard import expected_shared
from dapperfl.runtime.inbox import Inbox
from dapperfl.runtime.local import Trade
from dapperfl.runtime.wire import Parcel, Received, Reply, Task, kind_of, parcels

TASK, MODEL, REPLY = "task", "model", "reply"
ROUNDING = "rounding"  # a metric that no device may claim for itself
KINDS = {"train": "train", "statistics": "train.statistics"}  # Flower's, by ours
Asked = TypeVar("Asked", Assignment, StatisticsTask)


@dataclass(frozen=True)
class Sent:
    """A task that is on its way, and its size."""

    task: Task
    num_bytes: int


@dataclass
class FlowerRunner:
    """Sends the tasks of a phase to all, then hands over one reply at a time.

    Args:
        post: How nodes are reached.
        roster: Who is there.
        inbox: What opens and checks replies.
        trade: Method and net, for what honest updates look like.
        example: One made-up batch, for the same.
        deadline: Seconds that a phase may last.
    """

    post: Post
    roster: Roster
    inbox: Inbox
    trade: Trade
    example: Batch
    deadline: float
    memories: MutableMapping[int, State] = field(default_factory=dict)  # they stay on the devices
    _expected: dict[int, State] = field(default_factory=dict)  # beside the weights, by device id

    def train(self, assignments: Iterable[Assignment]) -> Iterator[ClientUpdate | LeftOut]:
        """Have every assigned model trained."""
        work = list(assignments)
        self._expect(work)
        for reply in self._replies(work):
            assert not isinstance(reply, Moments)
            yield reply
            del reply

    def statistics(self, tasks: Iterable[StatisticsTask]) -> Iterator[Moments | LeftOut]:
        """Have batch-norm moments of the given models measured."""
        # Small nets are measured in the round that is over: a phase, not a round, is asked once.
        ledger = self.inbox.ledger
        left = {key: n for key, n in ledger.answered.items() if key[0] != "statistics"}
        self.inbox.ledger = replace(ledger, answered=left)
        for reply in self._replies(list(tasks)):
            assert not isinstance(reply, ClientUpdate)
            yield reply
            del reply

    def looking_through(self, net: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the net itself: the server evaluates as the plain loop does."""
        return net

    def _expect(self, work: Iterable[Assignment]) -> None:
        """Find out what honest replies carry beside their weights, once for all tasks alike."""
        known: dict[Hashable, State] = {}
        self._expected.clear()
        for task in work:
            kind = _kind(task)
            if kind not in known:
                known[kind] = expected_shared(self.trade, task, self.example)
            self._expected[task.device.id] = known[kind]

    def _replies(self, tasks: list[Asked]) -> Iterator[Reply]:
        """Ask all who are there; say of the others why they are not asked."""
        self.roster.seek([task.device.id for task in tasks], self.deadline)
        absent = {task.device.id: self._absence(task.device) for task in tasks}
        ready = [task for task in tasks if absent[task.device.id] is None]
        yield from (out for out in absent.values() if out is not None)
        waiting: dict[str, Sent] = {}
        for task, content, num_bytes in self._letters(ready):
            node, kind = self.roster.nodes[task.device.id], KINDS[kind_of(task)]
            key = self.post.send(node, kind, content, self.deadline)
            if key is None:
                yield LeftOut(task.device, "the message could not be sent")
            else:
                waiting[key] = Sent(task, num_bytes)
        for came in self.post.collect(waiting, self.deadline):
            yield self._opened(came)
            del came

    def _absence(self, device: Device) -> LeftOut | None:
        if device.id not in self.roster.nodes:
            return LeftOut(device, "the device is not connected")
        aside = self.inbox.put_aside(device)
        if aside is not None:
            self.roster.tell(
                self.roster.nodes[device.id], f"{aside.reason}; this run asks it no more"
            )
        return aside

    def _letters(self, tasks: list[Asked]) -> Iterator[tuple[Asked, RecordDict, int]]:
        """Encode tasks; a model that is the same for several goes over the wire once."""
        terms = part(self.roster.terms)
        last: tuple[bytes, Array] | None = None
        found: Iterator[Parcel] = parcels(self.inbox.codec, tasks, self.inbox.run)
        for task, parcel in zip(tasks, found, strict=True):
            if last is None or last[0] != parcel.model:
                last = parcel.model, part(parcel.model)
            content = letter({TERMS: terms, MODEL: last[1], TASK: part(parcel.task)})
            yield task, content, len(terms.data) + len(parcel.model) + len(parcel.task)

    def _opened(self, came: Came[Sent]) -> Reply:
        """Believe a reply, or leave its device out with the reason."""
        task, content = came.about.task, came.content
        if isinstance(content, Silence):
            return LeftOut(task.device, content.reason)
        try:
            if isinstance(content, MessageError):
                raise content
            if (reason := refused(content)) is not None:
                self.roster.doubt(task.device.id)
                return LeftOut(task.device, reason)
            data = opened(content, {REPLY: reply_limit(self.inbox.codec)})[REPLY]
        except MessageError as error:
            return self.inbox.refuse(task, error)
        self.inbox.shared = self._expected.get(task.device.id, {})
        return _measured(self.inbox.open(data, task), came.about.num_bytes)


def _kind(task: Assignment) -> Hashable:
    """Return what two tasks have in common whose replies have tensors of the same shapes."""
    shapes = task.model.submodel.shapes
    shared = {name: tensor.shape for name, tensor in task.shared.items()}
    return task.device.rho, *(
        tuple((n, tuple(s)) for n, s in of.items()) for of in (shapes, shared)
    )


def _measured(received: Received[Reply], bytes_down: int) -> Reply:
    """Put what really went over the wire in place of what a device says it costs."""
    reply = received.message
    if isinstance(reply, LeftOut):
        return reply
    spent = replace(reply.cost, bytes_up=received.num_bytes, bytes_down=bytes_down)
    if isinstance(reply, Moments):
        return replace(reply, cost=spent)
    lost = received.rounding
    metrics = {name: value for name, value in reply.metrics.items() if name != ROUNDING}
    metrics |= {} if lost is None else {ROUNDING: lost.relative_error}
    return replace(reply, cost=spent, metrics=metrics)
