"""What `dapperfl serve` does: a SuperLink, the run in it, and an eye on both until it is done."""

import logging
import secrets
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from dapperfl.data.benchmark import Federation
from dapperfl.errors import CheckpointError, ConfigError, RunError
from dapperfl.flower.address import Address, why_silent
from dapperfl.flower.app_folder import write_app
from dapperfl.flower.certificates import Certificates, check_server, public_keys
from dapperfl.flower.control import connected
from dapperfl.flower.desk import Desk
from dapperfl.flower.keyring import Keyring
from dapperfl.flower.kit import build_kit, modules_of, reply_limit
from dapperfl.flower.place import RUN, Place
from dapperfl.flower.processes import (
    Child,
    end_stale,
    require_port,
    running,
    surroundings,
)
from dapperfl.flower.superlink import CHUNK, PARTS, SECRET
from dapperfl.flower.tail import Tail
from dapperfl.flower.terms import terms_of
from dapperfl.lab.config import Config, to_toml
from dapperfl.lab.continuing import check_same_run, may_write, stored_config
from dapperfl.lab.folder import RunFolder, read_json, write_atomically
from dapperfl.lab.records import RoundLine, load_records
from dapperfl.lab.world import known_world, planned, wanted, without_effect

_START = 120.0  # seconds that the SuperLink, and then the ServerApp, may take to come up
_PAUSE = 0.3
_WRAPPING = 16  # objects that the pieces of a reply are packed in
_TAKING_LEAVE = 5.0  # seconds between the end of the ServerApp's work and its last word
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Door:
    """Where devices knock, and how both sides know each other; without certificates, not at all."""

    address: Address
    certificates: Certificates | None = None
    keys: Path | None = None  # the folder of the devices' public keys

    @property
    def authority(self) -> Path | None:
        """What the server is known by."""
        return None if self.certificates is None else self.certificates.authority

    def named_keys(self) -> dict[str, bytes]:
        """The keys of the devices that are let in, by the names of their files."""
        return {} if self.keys is None else public_keys(self.keys)

    def public_keys(self) -> list[bytes]:
        """Each of these keys once: Flower takes none twice."""
        return [*dict.fromkeys(self.named_keys().values())]

    def check(self) -> None:
        """Refuse certificates that no server can start with; see `check_server`."""
        if self.certificates is not None:
            check_server(self.certificates)

    def options(self) -> list[str]:
        """Return the SuperLink's options."""
        where = ["--host", self.address.host, "--port", str(self.address.port)]
        if self.certificates is None:
            return [*where, "--insecure"]
        files = self.certificates
        return [
            *where,
            *("--ssl-ca-certfile", str(files.authority)),
            *("--ssl-certfile", str(files.server)),
            *("--ssl-keyfile", str(files.server_key)),
            "--enable-supernode-auth",
        ]


def serve(config: Config, out: Path, door: Door, *, resume: bool) -> Iterator[str | RoundLine]:
    """Serve a run until it is finished; yield its rounds, and notes on what happens between.

    Raises:
        CheckpointError: the run folder is in use, or would be overwritten.
        ConfigError: a key or certificate is missing or useless, or a run to be continued has other
            settings.
        RunError: the port is taken, or the run has failed.
    """
    folder, place = RunFolder(out), Place(out.absolute())
    if may_write(folder, resume):
        check_same_run(stored_config(folder), config)
    door.check()
    keys = door.public_keys()
    world = known_world(config)
    if vain := without_effect(config):
        logger.warning(
            "devices bring their own pictures and say their own rho; settings without effect: %s",
            ", ".join(vain),
        )
    parts = _most_parts(config, world)  # what is wrong with it must show before anything is started
    if door.keys is not None and len(keys) < (most := wanted(config, planned(world, folder))):
        raise ConfigError(
            f"{door.keys} has the keys of {len(keys)} devices, but the run waits for {most}; copy "
            "those of the others there, or ask for fewer with deploy.devices"
        )
    with RunFolder(place.home).held("choose another --out"):
        end_stale(place.superlink.with_suffix(".pid"))
        require_port(door.address.host, door.address.port)
        place.status.unlink(missing_ok=True)
        write_atomically(place.config, to_toml(config).encode())
        write_app(place.app)
        secret = secrets.token_hex()
        news = _News(place)
        told = {RUN: str(place.out), SECRET: secret, PARTS: str(parts)}
        environment = surroundings(place.home, **told)
        with running(
            "superlink", door.options(), log=place.superlink, environment=environment
        ) as link:
            _wait_until_up(link, door)
            with connected(str(door.address.here), secret, door.authority) as control:
                nodes = control.register(keys)
                Desk(place).write_keys(Keyring.of(nodes, door.named_keys()))
                control.start()
            yield f"listening on {door.address}"
            watch = _Watch(link, place)
            while (state := watch.look()) != "finished":
                yield from news.since(state)
                time.sleep(_PAUSE)
            yield from news.since(state)


def _most_parts(config: Config, world: Federation) -> int:
    """Say of how many objects of Flower's an honest reply consists at most."""
    kit = build_kit(terms_of(config, world, "size"), modules_of(config))
    return ceil(reply_limit(kit.codec) / CHUNK) + _WRAPPING


def _wait_until_up(link: Child, door: Door) -> None:
    end = time.monotonic() + _START
    while why_silent(door.address.here, door.authority):
        if link.ended() is not None or time.monotonic() > end:
            raise RunError(f"Flower's SuperLink does not start; {link.log} says why")
        time.sleep(_PAUSE)


class _News:
    """What the ServerApp has written and nobody has been shown."""

    def __init__(self, place: Place) -> None:
        self._out = place.out
        self._notes = Tail(place.notes)
        self._size = -1  # of the file of rounds, when last looked at
        self._shown: int | None = None  # rounds; None before the run is open: that may cut some off

    def since(self, state: str) -> Iterator[str | RoundLine]:
        """Yield what is new, notes before the rounds they belong to."""
        yield from self._notes.lines()
        if state in ("running", "finished"):
            yield from self._rounds()

    def _rounds(self) -> Iterator[RoundLine]:
        rounds = RunFolder(self._out).rounds
        size = rounds.stat().st_size if rounds.exists() else 0
        if size == self._size:
            return
        self._size = size
        lines = load_records(self._out)
        yield from [] if self._shown is None else lines[self._shown :]
        self._shown = len(lines)


class _Watch:
    """Notices when the SuperLink or the ServerApp is gone."""

    def __init__(self, link: Child, place: Place) -> None:
        self._link = link
        self._place = place
        self._begun = time.monotonic()
        self._alone: float | None = None  # since when nobody holds the ServerApp's lock

    def look(self) -> str:
        """Return the state that the ServerApp has told.

        Raises:
            RunError: it has failed, or cannot tell any more.
        """
        heard = self._place.status.exists()
        status = read_json(self._place.status) if heard else {}
        state: str = status.get("state", "starting")
        if state == "failed":
            raise RunError(status.get("message") or "the run has failed")
        if state == "finished":
            return state
        if self._link.ended() is not None:
            raise RunError(f"Flower's SuperLink has ended; {self._how_to_go_on()}")
        if self._is_gone(heard=heard):
            raise RunError(f"the ServerApp has ended without a word; {self._how_to_go_on()}")
        return state

    def _is_gone(self, *, heard: bool) -> bool:
        now = time.monotonic()
        if not heard:  # nor is the lock looked at: it must be free when the ServerApp wants it
            return now - self._begun > _START
        if _is_held(RunFolder(self._place.folder)):
            self._alone = None
            return False
        self._alone = self._alone or now
        return now - self._alone > _TAKING_LEAVE

    def _how_to_go_on(self) -> str:
        folder = shlex.quote(str(self._place.out))
        return f"continue with --out {folder} --resume; {self._link.log} may say why"


def _is_held(folder: RunFolder) -> bool:
    try:
        with folder.held():
            return False
    except CheckpointError:
        return True
