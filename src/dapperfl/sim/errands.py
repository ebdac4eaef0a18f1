"""What a worker process is asked to do, and does: the far side of `workers`."""

import os
import queue
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

import torch

from dapperfl.core.channels import ChannelGraph
from dapperfl.core.messages import (
    Assignment,
    ClientUpdate,
    LeftOut,
    Moments,
    StatisticsTask,
)
from dapperfl.core.state import State
from dapperfl.errors import is_of_memory
from dapperfl.runtime.local import Trade
from dapperfl.runtime.training import ClientData
from dapperfl.sim.graphs import GraphRunner
from dapperfl.sim.parcels import Channel, Raw


@dataclass(frozen=True)
class Setup:
    """What every worker knows before its first job."""

    trade: Trade
    graph: ChannelGraph
    seed: int


@dataclass(frozen=True)
class Done:
    """What became of a job, and what its client remembers from now on."""

    reply: ClientUpdate | LeftOut | Moments
    memory: State | None = None


@dataclass(frozen=True)
class Order:
    """One job of a worker, with what it does not have yet."""

    task: Assignment | StatisticsTask
    memory: State
    data: ClientData | None  # None: the worker has it
    gone: list[int]  # devices whose data are no longer needed


@dataclass(frozen=True)
class Refusal:
    """A worker's last words, when it cannot make sense of what it was sent, or has no memory."""

    reason: str
    no_room: bool


def do(runner: GraphRunner, task: Assignment | StatisticsTask, memory: State) -> Done:
    """Do one job with a runner of this process."""
    if isinstance(task, StatisticsTask):
        (measured,) = runner.statistics([task])
        return Done(measured)
    memories = {task.device.id: memory} if memory else {}
    runner.memories = memories
    (reply,) = runner.train([task])
    kept = memories.get(task.device.id)
    return Done(reply, None if kept is memory else kept)


def serve(end: int) -> None:
    """Work until the other side hangs up, be it in the middle of a job."""
    torch.set_num_threads(1)
    with socket.socket(fileno=end) as line:
        channel = Channel(line)
        inbox: queue.SimpleQueue[Raw] = queue.SimpleQueue()
        threading.Thread(target=listen, args=(channel, inbox), daemon=True).start()
        try:
            _work(channel, inbox)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            channel.send(Refusal(reason, is_of_memory(error)), {})


def _work(channel: Channel, inbox: "queue.SimpleQueue[Raw]") -> None:
    setup: Setup = channel.open(inbox.get(), {})
    known: dict[str, object] = {"graph": setup.graph}
    data: dict[int, ClientData] = {}
    runner = GraphRunner(setup.trade, data, setup.seed, branches=1)
    channel.send("ready", {})
    while True:
        order: Order = channel.open(inbox.get(), known)
        for device in order.gone:
            data.pop(device, None)
        if order.data is not None:
            data[order.task.device.id] = order.data
        done = do(runner, order.task, order.memory)
        channel.send(done, known | {"given": order.task.model.submodel})


def listen(channel: Channel, inbox: "queue.SimpleQueue[Raw]") -> None:
    """Take in messages, and end the process when there is nobody left to work for."""
    with suppress(EOFError, OSError):
        while True:
            inbox.put(channel.receive())
    os._exit(0)
