"""Where a deployed run keeps what is not part of its results: hidden in its run folder."""

from dataclasses import dataclass
from pathlib import Path

RUN = "DAPPERFL_RUN"  # the environment variable by which the ServerApp learns its run folder


@dataclass(frozen=True)
class Place:
    """The files of Flower, and of what serves it, beside those of the run."""

    out: Path  # the run folder

    @property
    def folder(self) -> Path:
        """Hidden, so that it does not count as a run that would be overwritten."""
        return self.out / ".flower"

    @property
    def config(self) -> Path:
        """The resolved config that the ServerApp opens."""
        return self.folder / "config.toml"

    @property
    def app(self) -> Path:
        """The thin Flower app."""
        return self.folder / "app"

    @property
    def home(self) -> Path:
        """Flower's own folder, FLWR_HOME."""
        return self.folder / "home"

    @property
    def status(self) -> Path:
        """How the ServerApp is doing, for `dapperfl serve` to read."""
        return self.folder / "status.json"

    @property
    def ledger(self) -> Path:
        """Which devices' replies were refused."""
        return self.folder / "ledger.json"

    @property
    def keys(self) -> Path:
        """Which key each of Flower's nodes has."""
        return self.folder / "keys.json"

    @property
    def claims(self) -> Path:
        """Which number each key has joined with."""
        return self.folder / "claims.json"

    @property
    def notes(self) -> Path:
        """What the ServerApp logs, a line each."""
        return self.folder / "server.log"

    @property
    def superlink(self) -> Path:
        """What the SuperLink logs."""
        return self.folder / "superlink.log"
