"""Messages to nodes and back, through Flower's `Grid`: all are sent, replies are fetched singly.

`Grid.send_and_receive` would hold every reply in memory. Here one is fetched, handed over and let
go before the next.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from dapperfl.errors import MessageError
from dapperfl.flower.letters import trouble

PAUSE = 0.5  # seconds between two looks for replies
GRACE = 60.0  # seconds that Flower keeps a message longer, so that the deadline's reason is ours
logger = logging.getLogger(__name__)
About = TypeVar("About")


@dataclass(frozen=True)
class Silence:
    """That no reply came, and why."""

    reason: str


@dataclass(frozen=True)
class Came(Generic[About]):
    """What became of one message."""

    about: About  # what the sender wanted to remember of it
    content: RecordDict | Silence | MessageError  # the last: something came, and it is broken


@dataclass(frozen=True)
class Post:
    """Sends and fetches; the clock can be another one for tests."""

    grid: Grid
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _late: dict[str, float] = field(default_factory=dict)  # messages given up, and until when

    def nodes(self) -> set[int]:
        """Return the nodes that are there now, by Flower's number."""
        return set(self.grid.get_node_ids())

    def send(self, node: int, kind: str, content: RecordDict, ttl: float) -> str | None:
        """Send a message; return what its reply is fetched by, None if Flower did not take it.

        Args:
            node: To whom, by Flower's number.
            kind: "query", "train" or "train.<action>".
            content: What to send.
            ttl: Seconds after which neither the message nor its reply is of any use.
        """
        message = Message(content, node, kind, ttl=ttl + GRACE)
        taken = list(self.grid.push_messages([message]))
        # For a node that has just gone, Flower's number of the message is empty.
        return (taken[0] or None) if taken else None

    def fetch(self, sent: str) -> RecordDict | Silence | MessageError | None:
        """Return what came in reply to a message; None if nothing has come yet."""
        try:
            found = list(self.grid.pull_messages([sent]))
        except Exception as error:
            # The border to a stranger's bytes: Flower's decoders raise whatever they stumble over.
            self.nodes()  # if it is Flower that cannot be reached, this raises as well
            logger.debug("a reply cannot be opened", exc_info=error)
            return MessageError("what came cannot be opened")
        if not found:
            return None
        if found[0].has_error():
            return Silence(trouble(found[0].error))
        return found[0].content

    def collect(self, waiting: dict[str, About], seconds: float) -> Iterator[Came[About]]:
        """Yield what comes in reply to messages, one at a time, until all is there or time is up.

        Args:
            waiting: What is to be remembered of each message; emptied on the way.
            seconds: When those still missing count as silent.
        """
        until = self.now() + seconds
        while waiting:
            self._drop_late()
            for sent in list(waiting):
                content = self.fetch(sent)
                if content is not None:
                    yield Came(waiting.pop(sent), content)
                del content  # not to be held while the next one is fetched
            if waiting and self.now() >= until:
                break
            if waiting:
                self.sleep(PAUSE)
        for sent in list(waiting):
            self._late[sent] = self.now() + GRACE
            yield Came(waiting.pop(sent), Silence(f"no reply within {seconds:g} s"))

    def _drop_late(self) -> None:
        """Fetch replies that came too late, for nobody: Flower holds each until it is fetched."""
        for sent, until in list(self._late.items()):
            if self.now() >= until or self.fetch(sent) is not None:
                del self._late[sent]
