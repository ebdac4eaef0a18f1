"""What `dapperfl join` does: a SuperNode that is started again whenever the server comes back."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapperfl.errors import ConfigError, RunError
from dapperfl.flower.address import Address, why_silent
from dapperfl.flower.processes import Child, free_port, running, surroundings
from dapperfl.flower.supernode import CLOCK, FOREIGN
from dapperfl.flower.tail import Tail
from dapperfl.lab.folder import RunFolder, write_atomically

_PAUSE = 0.3
_BETWEEN_STARTS = 2.0  # seconds
LONGEST = 300  # characters; as in runtime.facts, which would bring torch into a process that waits
_AGAIN = "joining again"
_NUMBER = re.compile(r"\d+")
_CHANGES = (  # state before, words of Flower's, state after, what is told
    ("joining", "SuperNode ID: ", "joined", "joined {}"),
    ("joined", "Connection attempt failed", "lost", "{} does not answer; trying again"),
    ("lost", "Connection successful", "joined", "{} answers again"),
)
_CANNOT = "cannot take part: "
_NOT_ASKED = {  # phases of a message after which a server does not ask for work
    "hello": _CANNOT + "{}; when that is solved, stop this and join again",
    "refused": "the server refuses this device: {}",
}
_ANSWERED = "Sending: "  # what Flower writes when it sends an answer, or that there is none
_DIED = (
    "a message was not worked on to its end, or that could not be noted: its process was killed, "
    "perhaps for want of memory, or the disk is full"
)
_NEEDS_KEY, _UNKNOWN_KEY, _BAD_KEY = "[code: 2001]", "[code: 2004]", "Exit Code: 302"


@dataclass(frozen=True)
class Member:
    """A device: who it is, where its pictures and its state are, and whom it works for."""

    server: Address
    state: Path
    settings: dict[str, str | int | float]  # the node config, which stays on the device
    certificate: Path | None = None
    key: Path | None = None

    def options(self) -> list[str]:
        """Return the SuperNode's options."""
        words = ["--superlink", str(self.server), "--host", "127.0.0.1"]
        words += ["--port", str(free_port()), "--node-config", str(self.state / "node.toml")]
        words += ["--insecure"] if self.certificate is None else self._trust(self.certificate)
        return words

    def _trust(self, certificate: Path) -> list[str]:
        key = [] if self.key is None else ["--auth-supernode-private-key", str(self.key)]
        return ["--root-certificates", str(certificate), *key]


def check_domain(text: str) -> None:
    """Refuse a domain that no server would accept.

    Raises:
        ConfigError: It is empty, too long, or no line of text.
    """
    if not text or not text.isprintable() or len(text) > LONGEST:
        raise ConfigError(f"--domain: expected one line of at most {LONGEST} printable characters")


def join(member: Member) -> Iterator[str]:
    """Work for a server until interrupted; yield a line for each round and each change.

    Raises:
        CheckpointError: another process works with the same state, or it cannot be written.
        RunError: the server refuses the device, or is not the one that was expected.
    """
    with RunFolder(member.state / ".flower").held("choose another --state"):
        yield from _told_once(_attempts(member))


def _attempts(member: Member) -> Iterator[str]:
    while True:
        yield from _wait_for_server(member)
        with started(member) as node:
            yield from _followed(node, member)
        time.sleep(_BETWEEN_STARTS)


def _told_once(lines: Iterator[str]) -> Iterator[str]:
    """Leave out why it joins again where the line before has said that, but for the numbers.

    A wrong clock, say, is there at every attempt, some ten times a minute.
    """
    before = None
    for line in lines:
        kind = _NUMBER.sub("", line) if line.endswith(_AGAIN) else None
        if kind is None or kind != before:
            yield line
        before = kind


def _wait_for_server(member: Member) -> Iterator[str]:
    told = None
    while (reason := why_silent(member.server, member.certificate)) is not None:
        if reason != told:
            yield f"waiting for {member.server}: {reason}"
        told = reason
        time.sleep(_BETWEEN_STARTS)


def started(member: Member) -> AbstractContextManager[Child]:
    """Start a device's SuperNode, for as long as the context lasts."""
    hidden = member.state / ".flower"
    # In a file: on a command line, Flower would not take every path.
    lines = (
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in member.settings.items()
    )
    write_atomically(member.state / "node.toml", "".join(lines).encode())
    environment = surroundings(hidden / "home")
    return running(
        "supernode", member.options(), log=hidden / "supernode.log", environment=environment
    )


def _followed(node: Child, member: Member) -> Iterator[str]:
    """Tell what the SuperNode goes through, until it ends."""
    follower = _Follower(node, member)
    while True:
        code = node.ended()
        yield from follower.news()
        if code is not None:
            _raise_if_refused(code, node.last_words(), member)
            yield _why_again(node, joined=follower.joined)
            return
        time.sleep(_PAUSE)


def _raise_if_refused(code: int, written: str, member: Member) -> None:
    who = f"{member.server} refuses this device"
    if code == FOREIGN:
        raise RunError(
            f"{member.server} ships an app that is not the one of this dapperfl; install the same "
            "version on both sides"
        )
    if _NEEDS_KEY in written:
        raise RunError(f"{who}: it knows devices by their keys; give yours with --key")
    if _UNKNOWN_KEY in written:
        raise RunError(
            f"{who}: it does not know the key {member.key}; put its public half (.pub) into the "
            "server's folder of keys and start the server again"
        )
    if _BAD_KEY in written:
        raise RunError(f"{member.key} is no private key that Flower can use; see dapperfl certs")


def _why_again(node: Child, *, joined: bool) -> str:
    """Say why a device joins again; what is wrong here, its owner can only mend if told."""
    _, found, rest = node.last_words().rpartition(CLOCK)
    if found:
        how_far, _, _ = rest.partition("\n")
        return f"{CLOCK}{how_far}; set the clocks right; {_AGAIN}"
    if joined:
        return f"the connection has ended; {_AGAIN}"
    return f"Flower's SuperNode has ended before it joined; {node.log} may say why; {_AGAIN}"


class _Follower:
    """Turns what the SuperNode and the ClientApp write into a few lines."""

    def __init__(self, node: Child, member: Member) -> None:
        self._server = member.server
        self._worked = Tail(member.state / "worked.jsonl")
        self._log = Tail(node.log, node.since)
        self._state = "joining"
        self._unnoted = 0  # answers that were sent without a word in what was worked on
        self._excuse = ""  # what was told last of why it cannot take part

    @property
    def joined(self) -> bool:
        """Whether the server has ever let it in."""
        return self._state != "joining"

    def news(self) -> Iterator[str]:
        """Yield what is new."""
        for line in self._log.lines():
            yield from self._connection(line)
            self._unnoted += _ANSWERED in line
        # Read after the log: a message is noted before it is answered.
        for line in self._worked.lines():
            yield from self._without_echo(_readable(line))
            self._unnoted -= 1
        if self._unnoted > 0:
            self._unnoted = 0
            yield _DIED

    def _without_echo(self, told: list[str]) -> list[str]:
        """Leave out what was told already: a server asks again and again who somebody is."""
        if told and told[0] == self._excuse:
            return []
        self._excuse = told[0] if told and told[0].startswith(_CANNOT) else self._excuse
        return told

    def _connection(self, line: str) -> Iterator[str]:
        """Follow the words of Flower by which the connection comes and goes."""
        for before, words, after, text in _CHANGES:
            if self._state == before and words in line:
                self._state = after
                yield text.format(self._server)
                return


def _readable(text: str) -> list[str]:
    """Tell of one message that was worked on; a process that was killed leaves half a line."""
    try:
        return list(_told(json.loads(text)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"worked.jsonl has a line that cannot be read: {text[:LONGEST]!r}"]


def _told(row: dict[str, Any]) -> Iterator[str]:
    """Write one message that was worked on as a line; hellos are no work."""
    if row.get("error") and row["phase"] in _NOT_ASKED:
        yield _NOT_ASKED[row["phase"]].format(row["error"])
    elif row.get("error"):
        yield f"{row['phase']}, round {row.get('round', '-')}: failed: {row['error']}"
    elif row["phase"] == "train":
        tested = row.get("tested") or 0
        before = f"  accuracy before {100 * row['correct'] / tested:.1f} %" if tested else ""
        loss = "-" if row.get("loss") is None else f"{row['loss']:.3f}"
        sent = f"{row['sent'] / 1000:,.1f} kB"
        yield f"round {row['round']}  loss {loss}{before}  sent {sent}  {row['seconds']:.1f} s"
