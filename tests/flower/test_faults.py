"""Devices that die or hang in a round, and servers that are killed: the run goes on.

One deployment goes through all of it, because each start of one takes its time.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.flower.conftest import write_config
from tests.flower.deployment import (
    MARKS,
    Command,
    assert_nothing_left,
    node_group,
    processes_of,
    reasons,
    received,
    rounds,
    started,
    until,
)

from dapperfl.flower.certificates import Certificates
from dapperfl.flower.processes import free_port

pytestmark = MARKS
DEADLINE = 45
# Flower gives a device up that has not been heard of for 60 s. Its last heartbeat may be half of
# that old when it stops, so now the deadline comes first, now Flower's word.
GONE = f"no reply(: Error: Node Unavailable| within {DEADLINE} s)"
SETTINGS = [
    *("fleet.devices=3", "fleet.rhos=[0.0, 0.4]", "data.protocol=iid"),
    *("rounds=4", f"deploy.deadline={DEADLINE}"),
    "method.recalibrate_rounds=0",  # one phase a round is enough to die in
]


@dataclass(frozen=True)
class Site:
    """A deployment with TLS and keys, whose parts can be started again."""

    place: Path
    root: Path
    keys: Certificates
    port: int

    @property
    def out(self) -> Path:
        return self.place / "out"

    def state(self, device: int) -> Path:
        return self.place / f"device-{device}"

    @contextmanager
    def serve(self, name: str, *more: str) -> Iterator[Command]:
        words = ["serve", "run.toml", "--out", self.out, "--certs", self.keys.folder]
        words += ["--host", "127.0.0.1", "--port", self.port, *more]
        with started(words, self.place / f"serve-{name}.txt") as command:
            yield command

    @contextmanager
    def join(self, device: int, name: str = "first") -> Iterator[Command]:
        words = ["join", f"127.0.0.1:{self.port}", "--partition", "--root", self.root]
        words += ["--certificate", self.keys.authority, "--key", self.keys.device_key(device)]
        words += ["--state", self.state(device)]
        with started(words, self.place / f"join-{device}-{name}.txt") as command:
            yield command

    def wait_for_training(self, device: int, server: Command) -> None:
        """Wait until a device is sent something to train from now on."""
        before = received(self.state(device), "train")
        until(
            lambda: received(self.state(device), "train") > before,
            "training under",
            server,
            alive=True,
        )

    def wait_for_round(self, number: int, server: Command) -> None:
        until(lambda: len(rounds(self.out)) >= number, f"round {number} of", server, alive=True)


@pytest.fixture
def site(place: Path, minidigits_root: Path, certificates: Certificates) -> Site:
    write_config(place / "run.toml", minidigits_root, *SETTINGS)
    return Site(place, minidigits_root, certificates, free_port())


def test_a_run_survives_whatever_dies(site):
    with ExitStack() as stack:
        joins = [stack.enter_context(site.join(device)) for device in range(3)]
        joins[0].wait_for("waiting for 127")  # devices may come before their server

        with site.serve("first") as server:
            server.wait_for("listening on")
            kill_a_device(site, server, joins[2])
            stack.enter_context(site.join(2, "again"))
            stop_a_device(site, server)
            site.wait_for_round(2, server)
            server.kill()  # between rounds, as near as it can be caught
        assert_only_devices_left(site)

        with site.serve("second", "--resume") as server:
            site.wait_for_training(0, server)
            os.killpg(superlink(site), signal.SIGKILL)  # during a round, the ServerApp as well
            assert server.ended() == 1
            assert "error: Flower's SuperLink has ended; continue with --out" in server.said()
        assert_only_devices_left(site)

        with site.serve("third", "--resume") as server:
            site.wait_for_training(0, server)
            kill_the_server_app(site)
            assert server.ended() == 1
            assert "error: the ServerApp has ended without a word" in server.said()

        with site.serve("fourth", "--resume") as server:
            assert server.ended() == 0
        assert "round 4/4" in server.said()
        assert_all_joined_again(joins[:2])

    lines = rounds(site.out)
    assert [line.round for line in lines] == [1, 2, 3, 4]
    assert "no reply" in reasons(lines[0])[2]
    assert reasons(lines[1]).keys() >= {1}
    assert lines[-1].left_out == ()
    assert_nothing_left(site.place)


def kill_a_device(site: Site, server: Command, join: Command) -> None:
    """Kill -9 one in its training: its round completes with the others."""
    site.wait_for_training(2, server)
    join.kill()
    site.wait_for_round(1, server)
    server.wait_for(f"device 2 is left out: {GONE}")


def stop_a_device(site: Site, server: Command) -> None:
    """Stop one in its training until the round is over, and let it go on after that."""
    site.wait_for_training(1, server)
    group = node_group(site.state(1))
    os.killpg(group, signal.SIGSTOP)
    try:
        site.wait_for_round(2, server)
        server.wait_for(f"device 1 is left out: {GONE}")
    finally:
        os.killpg(group, signal.SIGCONT)


def superlink(site: Site) -> int:
    return int((site.out / ".flower/superlink.pid").read_text())


def kill_the_server_app(site: Site) -> None:
    found = [each for each in processes_of(site.out) if "flwr-serverapp" in each]
    assert len(found) == 1
    os.kill(int(found[0].split()[0]), signal.SIGKILL)


def assert_only_devices_left(site: Site) -> None:
    """Nothing of a dead server may linger, and hold its port or its folder."""
    until(lambda: processes_of(site.out) == [], "an empty house")


def assert_all_joined_again(joins: list[Command]) -> None:
    for join in joins:
        assert join.process.poll() is None
        assert join.said().count("joined 127.0.0.1") >= 2
        assert "round 4  loss" in join.said()
        assert join.interrupt() == 130
