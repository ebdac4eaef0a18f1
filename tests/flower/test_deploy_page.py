"""docs/deploy.md, command by command, in a folder of its own.

The server of the first run is killed in its second round, before the page's own `--resume`; what
comes out must be what the simulator computes.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.flower.deployment import Command, received, rounds, started, until
from tests.flower.test_deployment import assert_same_weights

from dapperfl.flower.certificates import public_keys
from dapperfl.flower.processes import free_port
from dapperfl.lab.experiment import run
from dapperfl.lab.folder import read_json
from dapperfl.lab.resolve import resolve

PAGE = Path(__file__).parents[2] / "docs/deploy.md"
BLOCKS = re.compile(r"```bash\n(.*?)```", re.DOTALL)
FIRST, OWN = "runs/first", "runs/own"


def files() -> dict[str, str]:
    """Return the page's files by name, which is the last one named before each."""
    text = PAGE.read_text()
    return {
        re.findall(r"`(\w+\.toml)`", text[: block.start()])[-1]: block[1]
        for block in re.finditer(r"```toml\n(.*?)```", text, re.DOTALL)
    }


def commands() -> list[list[str]]:
    """Return the page's commands as words, its variables filled in."""
    text, names = PAGE.read_text(), {}
    found = []
    for line in "".join(BLOCKS.findall(text)).splitlines():
        if assigned := re.fullmatch(r"(\w+)=(\S+)", line):
            names[assigned[1]] = assigned[2]
        else:
            found.append(shlex.split(re.sub(r"\$(\w+)", lambda name: names[name[1]], line)))
    return found


def test_the_page_uses_every_command_there_is_for_devices():
    used = {words[1] for words in commands() if words[0] == "dapperfl"}
    assert used == {"certs", "serve", "join", "levels", "local-fleet", "report"}
    assert {words[0] for words in commands()} == {"pip", "dapperfl", "ssh-keygen"}
    assert list(files()) == ["run.toml", "own.toml"]


@pytest.mark.flower
@pytest.mark.timeout(900)
def test_the_page_does_what_it_says(place, minidigits_root, monkeypatch):
    monkeypatch.setenv("DAPPERFL_DATA", str(minidigits_root))
    for name, text in files().items():
        (place / name).write_text(text)
    paint(place / "pictures")
    port = str(free_port())
    with ExitStack() as stack:
        reader = Reader(place, stack)
        for words in commands():
            reader.follow([word.replace("8443", port) for word in words])
        reader.let_the_server_finish()
    assert len(reader.joined) == 4
    first, simulated = place / FIRST, place / "simulated"
    run(resolve(place / "run.toml"), simulated)
    assert_same_weights(first, simulated)
    assert all(line.left_out == () for line in rounds(first))
    assert len(rounds(place / "runs/local")) == 1
    assert (first / "report.html").exists()
    (device,) = read_json(place / OWN / "allocation.json")["devices"]
    assert device == {"id": 0, "domain": "garden", "rho": 0.4, "num_samples": 16}
    assert rounds(place / OWN)[0].on_devices.keys() == {"garden"}


def paint(folder: Path) -> None:
    """Put ten plain pictures of either class into a folder."""
    from PIL import Image

    for name, colour in (("cat", (200, 120, 40)), ("dog", (60, 90, 160))):
        (folder / name).mkdir(parents=True)
        for shade in range(10):
            Image.new("RGB", (40, 40), tuple(c + shade for c in colour)).save(
                folder / name / f"{shade}.png"
            )


class Reader:
    """Somebody who types what the page says, and pulls the plug once."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place = place
        self.stack = stack
        self.server: Command | None = None
        self.joined: list[Command] = []

    def follow(self, words: list[str]) -> None:
        """Type one command; a new server, or a result, is asked for when the last one is done."""
        if words[0] == "pip":
            # It is installed already, and this is not the folder of a checkout.
            wanted = [re.sub(r"^\.(?=\[)", "dapperfl", word) for word in words]
            self._run([sys.executable, "-m", *wanted], PIP_NO_INDEX="1")
        elif words[0] == "ssh-keygen":
            if shutil.which(words[0]):
                self._run(words)
                assert list(public_keys(self.place)) == ["device-3"]
        elif words[1] == "serve":
            if "--resume" in words:
                self._pull_the_plug()
            else:
                self.let_the_server_finish()
            self.server = self._start(words)
            self.server.wait_for("listening on")
        elif words[1] == "join":
            self.joined.append(self._start(words))
        else:
            self.let_the_server_finish()
            program = [sys.executable, "-m", "dapperfl", *words[1:]]
            self._run(program)

    def _start(self, words: list[str]) -> Command:
        output = self.place / f"{words[1]}-{len(list(self.place.glob('*.txt')))}.txt"
        return self.stack.enter_context(started(words[1:], output))

    def _run(self, words: list[str], **environment: str) -> None:
        done = subprocess.run(
            words,
            cwd=self.place,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def _pull_the_plug(self) -> None:
        assert self.server is not None
        state = self.place / "runs/device-0"
        until(lambda: len(rounds(self.place / FIRST)) == 1, "a round of", self.server, alive=True)
        before = received(state, "train")
        until(lambda: received(state, "train") > before, "the next round of", self.server)
        self.server.kill()

    def let_the_server_finish(self) -> None:
        """Wait for the results; devices of a finished server are told to go home."""
        if self.server is None:
            return
        assert self.server.ended() == 0, self.server.said()
        for join in self.joined:
            if join.process.poll() is None:
                assert join.interrupt() == 130
        self.server = None
