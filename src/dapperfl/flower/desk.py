"""What a serving process writes down beside its run: how it is doing, and whom it distrusts."""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dapperfl.errors import CheckpointError
from dapperfl.flower.keyring import Keyring
from dapperfl.flower.place import Place
from dapperfl.lab.folder import explained, intact, read_json, strict_json, write_json
from dapperfl.lab.notes import heard
from dapperfl.runtime.facts import as_text
from dapperfl.runtime.inbox import Ledger

State = Literal["starting", "waiting", "running", "finished", "failed"]
_REMEDY = "bring it back from a copy, or remove it"


@dataclass(frozen=True)
class Desk:
    """Reads and writes the small files of one run; each is whole at any moment."""

    place: Place

    def run_name(self) -> str:
        """Return what the run is called in its messages: the same after a resume, unlike others.

        Raises:
            CheckpointError: The file that says so is damaged, or cannot be written.
        """
        path = self.place.folder / "run.json"
        if path.exists():
            without = "devices then forget what they remember of this run"
            with intact(path, f"{_REMEDY}: {without}"):
                return str(read_json(path)["run"])
        name = f"run-{secrets.token_hex(12)}"
        with explained(self.place.out):
            write_json(path, {"run": name})
        return name

    def tell(self, state: State, message: str = "", joined: int = 0) -> None:
        """Say how it is going, for `dapperfl serve`.

        Raises:
            CheckpointError: It cannot be written.
        """
        facts = {"state": state, "message": as_text(message), "joined": joined}
        with explained(self.place.out):
            write_json(self.place.status, facts)

    def tell_failure(self, message: str) -> None:
        """Say why it has ended, even where a full disk is why: then over what was said before."""
        try:
            self.tell("failed", message)
        except CheckpointError:
            facts = {"state": "failed", "message": as_text(message), "joined": 0}
            with suppress(OSError), self.place.status.open("r+b") as file:
                file.write(strict_json(facts).encode())
                file.truncate()

    def read_ledger(self) -> Ledger:
        """Return what was known of the devices' replies after the last complete round.

        Raises:
            CheckpointError: The file that says so is damaged.
        """
        path = self.place.ledger
        if not path.exists():
            return Ledger()
        without = "devices that were put aside are then asked again"
        with intact(path, f"{_REMEDY}: {without}"):
            return Ledger.from_json(read_json(path))

    def write_ledger(self, ledger: Ledger) -> None:
        """Remember it for a process that takes over.

        Raises:
            CheckpointError: It cannot be written.
        """
        with explained(self.place.out):
            write_json(self.place.ledger, ledger.to_json())

    def write_keys(self, keyring: Keyring) -> None:
        """Say who has which key, before the run starts.

        Raises:
            CheckpointError: It cannot be written.
        """
        with explained(self.place.out):
            write_json(self.place.keys, keyring.to_json())

    def read_keyring(self) -> Keyring:
        """Return who has which key, and which numbers they have joined with so far.

        Raises:
            CheckpointError: A file that says so is damaged.
        """
        if not self.place.keys.exists():
            return Keyring()
        with intact(self.place.keys, "start the server again"):
            keyring = Keyring.from_json(read_json(self.place.keys))
        if not self.place.claims.exists():
            return keyring
        without = "any known key may then join with a number that no file of a key is named after"
        with intact(self.place.claims, f"{_REMEDY}: {without}"):
            return keyring.with_claims(read_json(self.place.claims))

    def write_claims(self, keyring: Keyring) -> None:
        """Remember which numbers keys have joined with, for a process that takes over.

        Raises:
            CheckpointError: It cannot be written.
        """
        with explained(self.place.out):
            write_json(self.place.claims, dict(keyring.claims))


@contextmanager
def noted(path: Path) -> Iterator[None]:
    """Write what the package logs to a file, a plain line each: Flower shows none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, mode="a", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    with heard(handler):
        yield
