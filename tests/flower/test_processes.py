"""Processes are started and ended for real, but they are no Flower's."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dapperfl.flower.processes import (
    Child,
    end_stale,
    kill_group,
    running,
    surroundings,
    terminable,
)

SLEEP = "import time; time.sleep(600)"
CHILD = f"""
import subprocess, sys
from dapperfl.flower.lifeline import end_with_parent
end_with_parent()
grandchild = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(grandchild.pid, flush=True)
grandchild.wait()
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, start_new_session=True
)
print(child.pid, flush=True)
child.wait()
"""


def is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(*numbers: int) -> None:
    end = time.monotonic() + 30
    while any(map(is_running, numbers)):
        assert time.monotonic() < end, "it runs and runs"
        time.sleep(0.05)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")


@needs_proc
def test_a_killed_parent_takes_its_children_and_theirs_along():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        below = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(is_running, below))
        parent.kill()
        wait_until_gone(*below)


@needs_proc
@pytest.mark.parametrize(("word", "ours"), [("flwr-serverapp", True), ("stranger", False)])
def test_only_flowers_own_leftovers_are_ended(tmp_path, word, ours):
    note = tmp_path / "superlink.pid"
    words = [sys.executable, "-c", SLEEP, word]
    with subprocess.Popen(words, start_new_session=True) as left:
        try:
            note.write_text(f"{left.pid}\n")
            while word.encode() not in Path(f"/proc/{left.pid}/cmdline").read_bytes():
                time.sleep(0.01)  # it is on the way from a copy of this process to its own
            assert end_stale(note) is ours
            assert not note.exists()
            if ours:
                assert left.wait(30) == -signal.SIGKILL
            assert (left.poll() is None) is not ours
        finally:
            left.kill()


@pytest.mark.parametrize("text", [None, "", "no number"])
def test_where_nothing_was_noted_nothing_is_ended(tmp_path, text):
    note = tmp_path / "superlink.pid"
    if text is not None:
        note.write_text(text)
    assert end_stale(note) is False


def test_a_request_to_end_is_an_interruption():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_flower_is_told_not_to_call_home_and_where_our_programs_are(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("no_proxy", "fl.example.org")
    told = surroundings(tmp_path / "home", MORE="1")
    assert told["no_proxy"] == told["NO_PROXY"] == "*"
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert told["FLWR_HOME"] == str(tmp_path / "home")
    assert told["MORE"] == "1"
    assert told["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert Path(told["PATH"].split(os.pathsep)[0], "flower-superexec").exists()


def sleeping(log: Path) -> Child:
    process = subprocess.Popen([sys.executable, "-c", SLEEP], stdin=subprocess.PIPE)
    return Child("supernode", process, log, 0)


DEAF = f"""
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(grandchild.pid, flush=True)
grandchild.wait()
"""


@needs_proc
def test_nothing_is_left_if_its_end_is_not_waited_for(tmp_path, monkeypatch):
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    below, wait = int(process.stdout.readline()), process.wait

    def impatient(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return int(wait())

    monkeypatch.setattr(process, "wait", impatient)
    try:
        with pytest.raises(KeyboardInterrupt):
            Child("supernode", process, tmp_path / "log", 0).stop()
        wait_until_gone(process.pid, below)
    finally:
        kill_group(process.pid)
        process.communicate()


def test_a_log_that_was_moved_away_has_no_last_words(tmp_path):
    child = sleeping(tmp_path / "supernode.log")
    try:
        assert child.last_words() == ""
    finally:
        child.stop()


def test_a_process_that_cannot_be_noted_is_ended(tmp_path, monkeypatch):
    made: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        options["start_new_session"] = True
        process = plain([sys.executable, "-c", SLEEP], **options)
        made.append(process)
        return process

    plain = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    log = tmp_path / "supernode.log"
    monkeypatch.setattr(Path, "write_text", full)
    with (
        pytest.raises(OSError, match="No space left"),
        running("supernode", [], log=log, environment=os.environ),
    ):
        pytest.fail("it must not go on")
    assert made[0].poll() is not None


def full(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
