"""What a device keeps of a run on its disk: its memory after each of the last rounds it worked in.

A server that was killed asks its round again, or the one before if its last checkpoint is damaged.
The device then starts from what it remembered before that round, and overwrites what it made of it
the first time.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from dapperfl.core.state import State
from dapperfl.errors import CheckpointError
from dapperfl.lab.folder import write_atomically

AGAIN = 1  # rounds that a server may go back
_NAME = re.compile(r"round-(\d{6,})\.safetensors")
KEEP = AGAIN + 2  # rounds: what was before the earliest of them is needed, too


@dataclass(frozen=True)
class Remembered:
    """The files of one run on one device."""

    folder: Path

    @property
    def earliest(self) -> int:
        """The earliest round that it may be asked for (again)."""
        return max(max(self._rounds(), default=0) - AGAIN, 1)

    def before(self, round_num: int) -> State:
        """Return what the device remembered when this round began.

        Raises:
            CheckpointError: The file cannot be read.
        """
        earlier = [each for each in self._rounds() if each < round_num]
        if not earlier:
            return {}
        path = self._path(max(earlier))
        try:
            return load(path.read_bytes())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; remove it") from error

    def keep(self, round_num: int, memory: State) -> None:
        """Remember this from now on; only the last rounds are kept."""
        tidy = {name: t.detach().cpu().contiguous().clone() for name, t in memory.items()}
        write_atomically(self._path(round_num), save(tidy))
        for each in sorted(self._rounds(), reverse=True)[KEEP:]:
            self._path(each).unlink(missing_ok=True)

    def _path(self, round_num: int) -> Path:
        return self.folder / f"round-{round_num:06d}.safetensors"

    def _rounds(self) -> list[int]:
        found = (_NAME.fullmatch(path.name) for path in self.folder.glob("round-*"))
        return [int(each[1]) for each in found if each]  # a copy under another name is none
