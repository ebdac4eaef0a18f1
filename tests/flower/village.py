"""Flower in one process: a `Grid` whose nodes are our ClientApp, for tests of what is ours.

Messages are deflated to bytes and inflated again, as on the way through a SuperLink, so that what
crosses the wire can be looked at.
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from dapperfl.flower.client_app import app
from dapperfl.flower.desk import Desk
from dapperfl.flower.letters import RECORD, letter, part
from dapperfl.flower.place import Place
from dapperfl.flower.post import Post
from dapperfl.flower.roster import REFUSED
from dapperfl.flower.runner import REPLY
from dapperfl.flower.server_app import Assembly, serve
from dapperfl.lab.config import Config
from dapperfl.lab.resolve import resolve
from dapperfl.sim.simulator import Simulator

MODULES = "tests.lab.toy_world"
TOY = [
    "data=tests.lab.toy_world:load",
    "net=convnet",
    "net.width=4",
    "fleet.devices=3",
    "fleet.rhos=[0,0.4,0.5]",
    "rounds=2",
    "train.epochs=2",
    "train.batch_size=8",
    "engine.device=cpu",
    "engine.name=loop",
    "deploy.deadline=20",
]


class Killed(BaseException):
    """The server's process is gone."""


@dataclass
class Clock:
    """Time that passes only when somebody waits."""

    at: float = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@dataclass
class Node:
    """A device behind the wire: our ClientApp with a node config, or something worse."""

    settings: dict[str, bool | float | int | str]
    number: int = 0
    twist: "Twist | None" = None  # of an honest reply
    seen: list[Message] = field(default_factory=list)  # replies it has sent

    def answer(self, message: Message) -> Message | None:
        context = Context(1, self.number, self.settings, RecordDict(), {})
        reply: Message | None = app(message, context)
        assert reply is not None
        if self.twist is not None:
            reply = self.twist(self, message, reply)
        if reply is not None:
            self.seen.append(reply)
        return reply


Twist = Callable[[Node, Message, Message], Message | None]


def training_replies(change: Callable[[Node, bytes], bytes]) -> Twist:
    """Return what a node does that is honest but for the bytes of its training replies."""

    def twist(node: Node, message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "train":
            return reply
        data = change(node, reply.content.array_records[RECORD][REPLY].data)
        return Message(letter({REPLY: part(data)}), reply_to=message)

    return twist


class Village(Grid):
    """All nodes, and the wire between them and the server."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: dict[int, Node] = {}
        self.clock = Clock()
        self.wire: dict[str, bytes] = {}  # every object that was sent, once, by its hash
        self.pushed: list[Message] = []
        self.replies: dict[str, Message | Exception | None] = {}
        self.order: Callable[[list[str]], list[str]] = list  # in which replies become ready
        self.alive: weakref.WeakSet[Message] = weakref.WeakSet()
        self.most_alive = 0
        self.before_pull: Callable[[], None] = lambda: None
        self._next = 100
        # What Flower would have told the server's process.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> int:
        self._next += 1
        node.number = self._next
        self.nodes[self._next] = node
        return self._next

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args, **kwargs) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args, **kwargs) -> Iterable[Message]:
        raise AssertionError("this would hold all replies in memory")

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        keys = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = key = message.object_id
            self.pushed.append(message)
            self.replies[key] = None
            keys.append(key)
            node = self.nodes.get(message.metadata.dst_node_id)
            if node is not None:
                self._deliver(key, node, self._carried(message))
        return keys

    def _deliver(self, key: str, node: Node, message: Message) -> None:
        message.metadata.__dict__["_message_id"] = key
        try:
            reply = node.answer(message)
            if message.metadata.message_type == REFUSED:
                del self.replies[key]  # nobody fetches what there is to say to that
            else:
                self.replies[key] = None if reply is None else self._carried(reply)
        except (KeyError, ValueError) as error:
            self.replies[key] = error

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.before_pull()
        (key,) = message_ids  # more would be more than one in memory
        waiting = [each for each, reply in self.replies.items() if reply is not None]
        if key not in self.order(waiting)[:1] and key in waiting:
            return []
        found = self.replies.pop(key, None)
        if isinstance(found, Exception):
            raise found
        if found is None:
            self.replies[key] = None
            return []
        copy = self._carried(found)
        self.alive.add(copy)
        self.most_alive = max(self.most_alive, len(self.alive))
        return [copy]

    def wire_text(self) -> list[str]:
        """Return all that was sent, as far as it can be read."""
        return [data.decode("latin-1") for data in self.wire.values()]

    def _carried(self, message: Message) -> Message:
        """Send a message through the wire: as bytes, each object once."""
        objects = {key: each.deflate() for key, each in get_all_nested_objects(message).items()}
        self.wire |= objects
        top = message.object_id
        copy = inflate_object_from_contents(top, dict(objects))
        assert isinstance(copy, Message)
        copy.metadata.__dict__["_message_id"] = message.metadata.message_id
        return copy


def crashed(message: Message, reason: str) -> Message:
    """Return what Flower sends in place of a reply."""
    return Message(Error(5, reason), reply_to=message)


def assembled(village: Village, config: Config, out: Path) -> Simulator:
    """Return the simulator whose clients are the nodes, without the run folder around it."""
    post = Post(village, village.clock.now, village.clock.sleep)
    return Assembly(config, out, post, Desk(Place(out))).make(config)


def serve_in(village: Village, config: Config, out: Path) -> None:
    """Run our server's code to its end."""
    desk = Desk(Place(out))
    post = Post(village, village.clock.now, village.clock.sleep)
    serve(config, out, post, desk)


def nodes_of(config: Config, folder: Path, **extra: bool | float | int | str) -> list[Node]:
    """Return one honest node for each device of a config."""
    return [
        Node({"device-id": n, "state": str(folder / f"device-{n}"), "modules": MODULES, **extra})
        for n in range(config.fleet.devices)
    ]


def toy(*settings: str) -> Config:
    """Return a config whose rounds take a fraction of a second, with some settings changed."""
    return resolve(None, [*TOY, *settings])
