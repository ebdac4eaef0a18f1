"""Messages between server and clients as bytes, and back.

Both sides derive the channel graph from the same net, so neither it nor any name of it travels. A
task goes down as a `Parcel`: the model, whose bytes are the same for all who get the same one, and
a few hundred bytes for the client itself. What comes up is one blob: kept channels as bits, the
submodel's tensors end to end, and the facts. Whatever does not fit is a `MessageError`; whether
what fits is also believable is the business of `guard`.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Generic, Self, TypeVar

from torch import nn

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import (
    Assignment,
    ClientCost,
    ClientUpdate,
    Device,
    LeftOut,
    LocalModel,
    Moments,
    StatisticsTask,
)
from dapperfl.core.state import State
from dapperfl.errors import MessageError
from dapperfl.runtime.cargo import Cargo
from dapperfl.runtime.facts import SMALLEST, Facts, as_text
from dapperfl.runtime.packing import Entry, none_left, pack, pick, unpack
from dapperfl.runtime.rounding import Rounding, halved

SCHEMA = 1
SHARED = "shared/"
SHARED_LIMIT = 2**26  # bytes of a method's own tensors in one message
Task = Assignment | StatisticsTask
Reply = ClientUpdate | Moments | LeftOut
Message = TypeVar("Message", covariant=True)


@dataclass(frozen=True)
class Stamp:
    """Which round of which run a message belongs to; a reply repeats that of its task."""

    run: str
    round_num: int


@dataclass(frozen=True)
class Parcel:
    """A task on its way down."""

    task: bytes  # for one client
    model: bytes  # the same for all who get this model


@dataclass(frozen=True)
class Received(Generic[Message]):
    """A message that fits the net, and how it travelled."""

    message: Message
    stamp: Stamp
    num_bytes: int
    rounding: Rounding | None = None  # None: every number came as it was


@dataclass(frozen=True)
class Codec:
    """Turns messages about one net into bytes and back; both sides build it from the same net."""

    cargo: Cargo
    fp16: bool = False  # updates go up in 16 bits, and say how much they lost

    @classmethod
    def of(cls, net: nn.Module, graph: ChannelGraph, *, fp16: bool = False) -> Self:
        """Build it from a net, as the method prepared it, and the net's graph."""
        return cls(Cargo.of(net, graph), fp16)

    # --- down ---

    def encode_model(self, model: LocalModel) -> bytes:
        """Encode a model for all who get it, bit for bit."""
        return pack(self._facts("model"), self.cargo.pack_model(model))

    def encode_task(self, task: Task, run: str, model: bytes) -> bytes:
        """Encode what one client needs beside its model, which `encode_model` made."""
        facts = self._facts(kind_of(task)) | _stamped(Stamp(run, task.round_num))
        facts |= {"device": asdict(task.device), "model": _digest(model)}
        if isinstance(task, StatisticsTask):
            return pack(facts, {})
        return pack(facts | {"epochs": task.epochs}, _keyed(task.shared))

    def decode_task(self, parcel: Parcel) -> Received[Task]:
        """Read what the server asks for.

        Raises:
            MessageError: If the parcel does not fit this net, or is damaged.
        """
        facts, entries = unpack(parcel.task, SHARED_LIMIT)
        training = self._begin(facts, "train", "statistics") == "train"
        stamp, device = _stamp(facts), facts.device("device")
        if facts.text("model") != _digest(parcel.model):
            raise MessageError("the model that came is not the one that the task names")
        epochs = facts.integer("epochs") if training else 0
        shared = self._shared(entries) if training else {}
        _end(facts, entries)
        model = self._decode_model(parcel.model)
        task: Task = StatisticsTask(stamp.round_num, device, model)
        if training:
            task = Assignment(stamp.round_num, device, model, epochs, shared)
        return Received(task, stamp, len(parcel.task) + len(parcel.model))

    # --- up ---

    def encode_reply(self, reply: Reply, stamp: Stamp) -> bytes:
        """Encode a client's answer to the task that had this stamp."""
        kind, facts, tensors = self._answer(reply)
        told = {"device": reply.device.id, **_stamped(stamp)}
        return pack(self._facts(kind) | told | facts, tensors)

    def decode_reply(self, data: bytes, task: Task) -> Received[Reply]:
        """Read the answer to a task; what is said of the device is the server's own knowledge.

        Raises:
            MessageError: If the answer does not fit the task and the net, or is damaged.
        """
        training = isinstance(task, Assignment)
        facts, entries = unpack(data, self.cargo.limit + SHARED_LIMIT * training)
        kind = self._begin(facts, "update" if training else "moments", "left out")
        sender = facts.integer("device")
        if sender != task.device.id:
            raise MessageError(f"device {sender} answers a task of device {task.device.id}")
        stamp, rounding = _stamp(facts), None
        reply: Reply
        if kind == "left out":
            reply = LeftOut(task.device, facts.text("reason"))
        elif kind == "moments":
            samples, spent = _samples_and_cost(facts)
            moments = self.cargo.read_moments(entries, task.model.submodel)
            reply = Moments(task.device, samples, spent, *moments)
        else:
            rounding = Rounding(*map(facts.number, ROUNDED)) if facts.flag("fp16") else None
            reply = self._update(facts, entries, task.device, rounded=rounding is not None)
        _end(facts, entries)
        return Received(reply, stamp, len(data), rounding)

    # --- a device introduces itself ---

    def encode_device(self, device: Device) -> bytes:
        """Encode what a device says of itself when it joins."""
        return pack(self._facts("device") | {"device": asdict(device)}, {})

    def decode_device(self, data: bytes) -> Device:
        """Read what a device says of itself.

        Raises:
            MessageError: If it has another net, or the message is damaged.
        """
        facts, entries = unpack(data, 0)
        self._begin(facts, "device")
        device = facts.device("device")
        _end(facts, entries)
        return device

    # --- parts ---

    def _facts(self, kind: str) -> dict[str, object]:
        return {"schema": SCHEMA, "net": self.cargo.fingerprint, "kind": kind}

    def _begin(self, facts: Facts, *kinds: str) -> str:
        """Check what every message starts with, and return its kind."""
        schema = facts.integer("schema")
        if schema != SCHEMA:
            raise MessageError(
                f"the message has schema {schema}, this version of dapperfl reads {SCHEMA}; "
                "install the same version on server and devices"
            )
        if facts.text("net") != self.cargo.fingerprint:
            raise MessageError(
                "the message is about another net; use the same configuration on both sides"
            )
        kind = facts.text("kind")
        if kind not in kinds:
            raise MessageError(f'a message of kind "{kind}" came, expected {" or ".join(kinds)}')
        return kind

    def _decode_model(self, data: bytes) -> LocalModel:
        facts, entries = unpack(data, self.cargo.limit)
        self._begin(facts, "model")
        model = self.cargo.read_model(entries)
        _end(facts, entries)
        return model

    def _answer(self, reply: Reply) -> tuple[str, dict[str, object], State]:
        """Return the kind, the facts and the tensors of a reply."""
        if isinstance(reply, LeftOut):
            return "left out", {"reason": as_text(reply.reason)}, {}
        facts: dict[str, object] = {
            "num_samples": reply.num_samples,
            "cost": [getattr(reply.cost, each.name) for each in fields(ClientCost)],
        }
        if isinstance(reply, Moments):
            return "moments", facts, self.cargo.pack_moments(reply)
        facts["metrics"] = {name: float(value) for name, value in reply.metrics.items()}
        model = self.cargo.pack_model(reply.model)
        small, rounding = halved(model) if self.fp16 else (model, None)
        facts["fp16"] = rounding is not None
        facts |= {} if rounding is None else asdict(rounding)
        return "update", facts, small | _keyed(reply.shared)

    def _update(
        self, facts: Facts, entries: dict[str, Entry], device: Device, *, rounded: bool
    ) -> ClientUpdate:
        samples, spent = _samples_and_cost(facts)
        metrics = facts.numbers("metrics")
        model = self.cargo.read_model(entries, rounded=rounded)
        return ClientUpdate(device, model, samples, spent, self._shared(entries), metrics)

    def _shared(self, entries: dict[str, Entry]) -> State:
        return self.cargo.here(pick(entries, SHARED, SHARED_LIMIT))


ROUNDED = tuple(each.name for each in fields(Rounding))


def parcels(codec: Codec, tasks: Iterable[Task], run: str) -> Iterator[Parcel]:
    """Encode tasks one by one; a model that follows itself is encoded once, for all."""
    last: tuple[LocalModel, bytes] | None = None
    for task in tasks:
        if last is None or last[0] is not task.model:
            last = task.model, codec.encode_model(task.model)
        yield Parcel(codec.encode_task(task, run, last[1]), last[1])


def kind_of(task: Task) -> str:
    """Say which phase of a round a task belongs to."""
    return "train" if isinstance(task, Assignment) else "statistics"


def _end(facts: Facts, entries: dict[str, Entry]) -> None:
    facts.end()
    none_left(entries)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _stamped(stamp: Stamp) -> dict[str, object]:
    return {"run": stamp.run, "round": stamp.round_num}


def _stamp(facts: Facts) -> Stamp:
    return Stamp(facts.text("run"), facts.integer("round"))


def _samples_and_cost(facts: Facts) -> tuple[int, ClientCost]:
    spent = ClientCost(*facts.integers("cost", len(fields(ClientCost))))
    return facts.integer("num_samples", least=SMALLEST), spent


def _keyed(shared: State) -> State:
    return {f"{SHARED}{name}": tensor.detach().clone() for name, tensor in shared.items()}
