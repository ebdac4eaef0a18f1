"""Which stream does what, and who waits for whom: seen with streams that only take notes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tests.sim.test_graphs import rounds

from dapperfl.methods.dapperfl import DapperFL
from dapperfl.sim.graphs import GraphRunner


class FakeStream:
    """Notes who waits for whom; what is queued on it is done at once."""

    device = torch.device("cpu")
    log: ClassVar[list[tuple[str, str]]] = []
    now: "ClassVar[FakeStream]"

    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: "FakeStream") -> None:
        self.log.append((self.name, other.name))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


@contextmanager
def entered(stream: FakeStream) -> Iterator[None]:
    before, FakeStream.now = FakeStream.now, stream
    yield
    FakeStream.now = before


@dataclass(frozen=True, kw_only=True)
class TellsItsStream(DapperFL):
    """Notes on which stream it is asked for what."""

    def loss(self, net, batch, work):
        FakeStream.log.append((f"loss {work.device.id}", FakeStream.now.name))
        return super().loss(net, batch, work)

    def after_epoch(self, epoch, local, work):
        FakeStream.log.append((f"cut {work.device.id}", FakeStream.now.name))
        return super().after_epoch(epoch, local, work)


def test_a_cut_is_urgent_and_both_streams_wait_for_each_other(monkeypatch):
    log: list[tuple[str, str]] = []
    monkeypatch.setattr(FakeStream, "log", log)
    monkeypatch.setattr(FakeStream, "now", FakeStream("server"), raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream.now)
    monkeypatch.setattr(torch.cuda, "stream", entered)

    def runner(*facts: Any) -> GraphRunner:
        made = GraphRunner(*facts)
        made.streams = [FakeStream(f"client {index}") for index in range(4)]  # type: ignore[misc]
        made.urgent = FakeStream("urgent")  # type: ignore[assignment]
        return made

    rounds(TellsItsStream(bn_statistics="average"), runner, rounds=1)
    for index in range(4):
        own, at = f"client {index}", log.index((f"cut {index}", "urgent"))
        losses = [place for place, (what, _) in enumerate(log) if what == f"loss {index}"]
        assert {log[place][1] for place in losses} == {own}
        assert ("urgent", own) in log[max(p for p in losses if p < at) : at]
        assert (own, "urgent") in log[at : min(p for p in losses if p > at)]
        later = log[at + 1 :]  # nobody else is served before this client trains again
        assert next(what for what, _ in later if what[:4] in ("loss", "cut ")) == f"loss {index}"
