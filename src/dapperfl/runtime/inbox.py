"""The server's border: replies of untrusted devices are opened, checked, counted or refused.

A reply that is refused becomes a `LeftOut` with the reason, so the round goes on as if the device
had dropped out. Three in a row, and the device is not asked again.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    Device,
    LeftOut,
    Moments,
    StatisticsTask,
)
from dapperfl.core.state import State
from dapperfl.errors import MessageError
from dapperfl.runtime.facts import as_text
from dapperfl.runtime.guard import (
    GuardSettings,
    check_moments,
    check_rounding,
    check_same_samples,
    check_stamp,
    check_update,
)
from dapperfl.runtime.wire import Codec, Received, Reply, Stamp, Task, kind_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ledger:
    """What the server remembers of its devices' replies, by device id."""

    strikes: Mapping[int, int] = field(default_factory=dict)  # refused in a row, up to now
    refused: Mapping[int, int] = field(default_factory=dict)  # in all
    answered: Mapping[tuple[str, int], int] = field(default_factory=dict)  # phase, id: last round

    def refuse(self, device: int) -> "Ledger":
        """Return the ledger after one more refused reply."""
        strikes = {**self.strikes, device: self.strikes.get(device, 0) + 1}
        return replace(
            self, strikes=strikes, refused={**self.refused, device: self.refused.get(device, 0) + 1}
        )

    def accept(self, task: Task) -> "Ledger":
        """Return the ledger after a good reply: the row of refused ones ends."""
        strikes = {device: n for device, n in self.strikes.items() if device != task.device.id}
        key = kind_of(task), task.device.id
        return replace(self, strikes=strikes, answered={**self.answered, key: task.round_num})

    def has_answered(self, task: Task) -> bool:
        """Tell whether a good reply to this task, or to a later one of its kind, has come."""
        return self.answered.get((kind_of(task), task.device.id), 0) >= task.round_num

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return what must outlive the server: who is distrusted.

        Who has answered need not: a round that is begun again asks all again.
        """
        parts = {"strikes": self.strikes, "refused": self.refused}
        return {part: {str(key): n for key, n in of.items()} for part, of in parts.items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Mapping[str, Any]]) -> "Ledger":
        """Read back what `to_json` returned."""
        strikes, refused = (
            {int(key): int(n) for key, n in stored[part].items()} for part in ("strikes", "refused")
        )
        return cls(strikes, refused)


@dataclass
class Inbox:
    """Opens the replies of one run, one at a time, and keeps the ledger.

    Args:
        codec: What the bytes are about.
        run: What this run is called in its messages.
        shared: What honest updates carry beside their weights; see `guard.expected_shared`.
        settings: What is believed.
        ledger: Of the run so far.
        known_samples: Whether the server knows how many samples each device has; else a device's
            own word counts, within bounds.
    """

    codec: Codec
    run: str
    shared: State = field(default_factory=dict)
    settings: GuardSettings = field(default_factory=GuardSettings)
    ledger: Ledger = field(default_factory=Ledger)
    known_samples: bool = False

    def put_aside(self, device: Device) -> LeftOut | None:
        """Say why a device is not asked any more; None if it is."""
        strikes = self.ledger.strikes.get(device.id, 0)
        if strikes < self.settings.strikes:
            return None
        return LeftOut(device, f"put aside after {strikes} refused replies in a row")

    def open(self, data: bytes, task: Task) -> Received[Reply]:
        """Return the reply to a task, checked; one that is refused is a `LeftOut` with the reason.

        A device that says itself that it cannot take part is left out too, without a strike.
        """
        try:
            received = self._believed(data, task)
        except MessageError as error:
            return Received(self.refuse(task, error), Stamp(self.run, task.round_num), len(data))
        if not isinstance(received.message, LeftOut):
            self.ledger = self.ledger.accept(task)
        return received

    def refuse(self, task: Task, error: MessageError) -> LeftOut:
        """Count one more reply that is not believed, and leave its device out."""
        logger.debug("a reply of device %d is refused", task.device.id, exc_info=error)
        self.ledger = self.ledger.refuse(task.device.id)
        return LeftOut(task.device, as_text(f"refused: {error}"))

    def _believed(self, data: bytes, task: Task) -> Received[Reply]:
        if aside := self.put_aside(task.device):
            raise MessageError(f"the device was {aside.reason}")
        received = self.codec.decode_reply(data, task)
        check_stamp(received.stamp, Stamp(self.run, task.round_num))
        if self.ledger.has_answered(task):
            raise MessageError(f"round {task.round_num} has been answered already")
        reply = received.message
        if received.rounding is not None:
            check_rounding(received.rounding)
        if self.known_samples and not isinstance(reply, LeftOut):
            check_same_samples(reply.num_samples, task.device)
        if isinstance(reply, ClientUpdate) and isinstance(task, Assignment):
            return replace(received, message=self._update(reply, task))
        if isinstance(reply, Moments) and isinstance(task, StatisticsTask):
            check_moments(reply, task, self.settings)
        return received

    def _update(self, update: ClientUpdate, task: Assignment) -> ClientUpdate:
        return check_update(update, task, self.shared, self.settings)
