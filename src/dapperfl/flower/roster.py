"""Which devices have joined, and behind which of Flower's nodes each one is.

Flower's node numbers change; a device is known by the id in its own settings. Every node that is
new is asked who it is, and asked again if nothing comes: Flower delivers a message once, and a bad
network may lose it. Who gives an id that another live node or another key has, or does not fit the
run, is refused and told why; it is asked again later.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from flwr.app import RecordDict

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import Device, LocalModel
from dapperfl.core.state import snapshot
from dapperfl.errors import BudgetError, MessageError
from dapperfl.flower.keyring import Keyring
from dapperfl.flower.letters import letter, opened, part, refusal, refused
from dapperfl.flower.post import PAUSE, Post, Silence
from dapperfl.runtime.facts import as_text
from dapperfl.runtime.guard import GuardSettings, check_device
from dapperfl.runtime.local import Trade
from dapperfl.runtime.packing import HEADER_LIMIT
from dapperfl.runtime.wire import Codec

TERMS, DEVICE = "terms", "device"
HELLO, REFUSED = "query", "query.refused"  # Flower's kinds of message
AGAIN = 120.0  # seconds after which a node that is silent, or not wanted, is asked again
_JOIN_AGAIN = "when that is solved, stop this and join again"
_WAIT = "it is asked when that one has left"
logger = logging.getLogger(__name__)


class _DeclinedError(MessageError):
    """The device itself says that it cannot take part."""


@dataclass
class Roster:
    """Who is there; kept up to date by `look`.

    Args:
        post: How nodes are reached.
        codec: What devices introduce themselves in.
        terms: What they are told of the run.
        guard: What is believed of them.
        deadline: Seconds that others wait for a node to say who it is.
        accept: Raises a `MessageError` if a device does not belong to the run.
        keyring: Whose key each node has.
        keep: Remembers a keyring that has changed.
    """

    post: Post
    codec: Codec
    terms: bytes
    guard: GuardSettings
    deadline: float
    accept: Callable[[Device], None]
    keyring: Keyring
    keep: Callable[[Keyring], None]
    nodes: dict[int, int] = field(default_factory=dict)  # Flower's node, by device id
    devices: dict[int, Device] = field(default_factory=dict)  # as they introduced themselves
    refused: int = 0  # introductions so far that were not accepted
    _asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # node, and when
    _greeted: dict[int, float] = field(default_factory=dict)  # nodes, and when they were asked last
    _mute: set[int] = field(default_factory=set)  # nodes that left a question unanswered
    _unwanted: dict[int, tuple[int | None, float]] = field(default_factory=dict)  # see `_take_in`
    _told: dict[int, str] = field(default_factory=dict)  # nodes, and why they are not asked

    def look(self, enough: Callable[[], bool], seconds: float) -> None:
        """Greet nodes that are new and take in what they say, until it is enough or too late."""
        until = self.post.now() + seconds
        while True:
            self._greet()
            self._listen()
            if enough() or self.post.now() >= until:
                return
            self.post.sleep(PAUSE)

    def seek(self, wanted: Collection[int], seconds: float) -> None:
        """Wait for devices that are missing, as long as some new node has not said who it is."""

        def enough() -> bool:
            old = self._mute | self._told.keys()
            new = any(node not in old for node, _ in self._asked.values())
            return self.nodes.keys() >= set(wanted) or not new

        self.look(enough, seconds)

    def tell(self, node: int, reason: str) -> None:
        """Tell a node why it is not asked, once; its owner can only mend what is known there."""
        if self._told.get(node) != reason:
            self._told[node] = reason
            self.post.send(node, REFUSED, refusal(reason), self.deadline)

    def doubt(self, device: int) -> None:
        """Ask who it is, while others work, of a node that did not work as this device.

        It may have been started anew as another one, and with a key it is the same node.
        """
        if device in self.nodes:
            self._ask(self.nodes[device])

    def _greet(self) -> None:
        live = self.post.nodes()
        for device, node in list(self.nodes.items()):
            if node not in live:
                logger.info("device %d has left", device)
                del self.nodes[device]
        now = self.post.now()
        self._unwanted = {
            node: (claimed, at)
            for node, (claimed, at) in self._unwanted.items()
            if node in live and now < at + AGAIN and (claimed is None or claimed in self.nodes)
        }
        self._greeted = {node: at for node, at in self._greeted.items() if node in live}
        self._told = {node: reason for node, reason in self._told.items() if node in live}
        self._mute &= live
        for node in sorted(live - set(self.nodes.values()) - self._unwanted.keys()):
            self._ask(node)

    def _ask(self, node: int) -> None:
        """Ask a node who it is, unless it has been asked just now."""
        now, before = self.post.now(), self._greeted.get(node)
        if before is not None and now < before + AGAIN:
            return
        if before is not None:
            self._note_silence(node, f"no reply within {now - before:.0f} s")
        # A fresh process on a slow device may need longer than the deadline of a quick round.
        sent = self.post.send(node, HELLO, letter({TERMS: part(self.terms)}), self._longest)
        if sent is not None:
            self._greeted[node], self._asked[sent] = now, (node, now)

    @property
    def _longest(self) -> float:
        """Seconds after which nothing that a node says of itself is waited for."""
        return max(self.deadline, AGAIN)

    def _listen(self) -> None:
        for sent, (node, asked) in list(self._asked.items()):
            if sent not in self._asked:  # it has answered another one
                continue
            content, silent = self.post.fetch(sent), self.post.now() - asked
            if content is None and silent >= self.deadline:
                self._note_silence(node, f"no reply within {self.deadline:g} s")
            if content is None and silent >= self._longest:
                del self._asked[sent]
            elif isinstance(content, Silence):
                del self._asked[sent]
                self._note_silence(node, content.reason)
            elif content is not None:
                self._asked = {key: of for key, of in self._asked.items() if of[0] != node}
                self._greeted.pop(node, None)  # it may have left since
                self._take_in(node, content)

    def _note_silence(self, node: int, reason: str) -> None:
        if node not in self._mute:
            who = self._who(node)
            logger.warning("%s has not said who it is (%s); it is asked again", who, reason)
        self._mute.add(node)

    def _take_in(self, node: int, content: RecordDict | MessageError) -> None:
        """Bind a node to the device that it says it is, or note whose id it wants, and when.

        One that is not wanted is asked again after a while: with a key, a device that was started
        anew is the same node, and nobody sees that it was away.
        """
        taken = None
        before = next((each for each, bound in self.nodes.items() if bound == node), None)
        try:
            device = check_device(self._introduced(content), self.guard)
            self.keyring.check(device.id, node)
            self.accept(device)
            if device.id in self.nodes and device.id != before:
                taken = device.id
                raise MessageError(f"device {taken} has joined already")
        except MessageError as error:
            if before is None:
                self._unwanted[node] = taken, self.post.now()
                self._refuse(node, error, _JOIN_AGAIN if taken is None else _WAIT)
            elif not isinstance(error, _DeclinedError):
                self.tell(node, f"{error}; {_JOIN_AGAIN}")
            return
        if device.id == before:
            return
        if before is not None:
            del self.nodes[before]
        self.nodes[device.id], self.devices[device.id] = node, device
        self._told.pop(node, None)
        self._claim(device.id, node)
        logger.info(
            "device %d joined: domain %s, rho %g, %d pictures",
            *(device.id, device.domain, device.rho, device.num_samples),
        )

    def _claim(self, device: int, node: int) -> None:
        before, self.keyring = self.keyring, self.keyring.claimed(device, node)
        if self.keyring != before:
            self.keep(self.keyring)

    def _refuse(self, node: int, error: MessageError, remedy: str) -> None:
        reason = f"{error}; {remedy}"
        if self._told.get(node) == reason:
            return
        self.refused += 1
        logger.warning("%s is refused: %s", self._who(node), as_text(str(error)))
        if isinstance(error, _DeclinedError):
            self._told[node] = reason  # its owner knows
        else:
            self.tell(node, reason)

    def _who(self, node: int) -> str:
        """Say of a node that is none of the devices all that is known: whose key it has."""
        number = self.keyring.number_of(node)
        return "a device" if number is None else f"a device with the key of device {number}"

    def _introduced(self, content: RecordDict | MessageError) -> Device:
        if isinstance(content, MessageError):
            raise content
        if reason := refused(content):
            raise _DeclinedError(f"it says: {reason}")
        return self.codec.decode_device(opened(content, {DEVICE: 3 * HEADER_LIMIT})[DEVICE])


def only(expected: Mapping[int, Device], *, samples: bool) -> Callable[[Device], None]:
    """Accept the devices of a fleet that is fixed.

    Args:
        expected: The fleet, by device id.
        samples: Whether their numbers of samples must agree too; a folder may have grown.
    """

    def accept(device: Device) -> None:
        planned = expected.get(device.id)
        if planned is None:
            raise MessageError(f"device {device.id} is none of this run's {len(expected)} devices")
        names = ("domain", "rho", "num_samples") if samples else ("domain", "rho")
        for name in names:
            ours, theirs = getattr(planned, name), getattr(device, name)
            if ours != theirs:
                raise MessageError(f"device {device.id} says {name} = {theirs}, expected {ours}")

    return accept


def able(trade: Trade, graph: ChannelGraph) -> Callable[[Device], None]:
    """Accept all devices for which the method finds a net that is small enough.

    One for which it finds none would end the run for all.
    """
    whole = LocalModel(snapshot(trade.template), graph.full())

    def accept(device: Device) -> None:
        try:
            # Beside a strong one: some methods do without weak ones only.
            start = trade.method.init(whole, [replace(device, rho=0.0), device])
            trade.method.compact(start, device.rho)
        except BudgetError as error:
            raise MessageError(f"device {device.id} asks for too little: {error}") from error

    return accept
