"""What the owner of a device is told, from what Flower and the ClientApp have written."""

import json
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dapperfl.errors import CheckpointError, RunError
from dapperfl.flower import joining
from dapperfl.flower.address import Address
from dapperfl.flower.joining import Member, _followed, join, started
from dapperfl.flower.processes import Child
from dapperfl.flower.supernode import CLOCK, FOREIGN, LOST
from dapperfl.lab.folder import RunFolder
from dapperfl.runtime.facts import TEXT_LIMIT

SERVER = Address("fl.example.org", 8443)


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return Member(SERVER, tmp_path, {"device-id": 3, "state": 'a "b" é'}, key=Path("mine"))


def follow(
    member: Member, log: str, code: int, worked: tuple[dict[str, Any], ...] = (), torn: str = ""
) -> list[str]:
    """Return what is told of a SuperNode that has written a log, and has then ended.

    `torn` is what a killed ClientApp has left before what others have worked.
    """
    path = member.state / "supernode.log"
    path.write_text(f"of an earlier start: [code: 2001]\n{log}")
    since = len(path.read_bytes()) - len(log.encode())
    with subprocess.Popen(["sh", "-c", f"exit {code}"]) as process:
        process.wait()
    lines = iter(_followed(Child("supernode", process, path, since), member))
    told = [next(lines)] if log else []
    with (member.state / "worked.jsonl").open("a") as file:
        file.write(torn)
        file.writelines(f"{json.dumps(row)}\n" for row in worked)
    return told + list(lines)


def test_joining_losing_and_finding_the_server_is_told_once_each(member):
    log = (
        "WARNING: Connection attempt failed, retrying in 0.06 seconds\n"
        "INFO: SuperNode ID: 71780829\n"
        "WARNING: Connection attempt failed, retrying in 1.0 seconds\n"
        "WARNING: Connection attempt failed, retrying in 2.0 seconds\n"
        "INFO: Connection successful after 1.52 seconds and 3 tries.\n"
    )
    assert follow(member, log, LOST) == [
        "joined fl.example.org:8443",
        "fl.example.org:8443 does not answer; trying again",
        "fl.example.org:8443 answers again",
        "the connection has ended; joining again",
    ]


def test_a_round_is_a_line(member):
    rows: tuple[dict[str, Any], ...] = (
        {"phase": "hello", "run": "run-1", "seconds": 0.5},
        {"phase": "train", "round": 1, "sent": 246013, "loss": 2.36, "tested": 8, "correct": 2,
         "seconds": 3.26},
        {"phase": "statistics", "round": 1, "sent": 3196, "seconds": 0.4},
        {"phase": "train", "round": 2, "error": "the disk is full", "seconds": 0.1},
        {"phase": "hello", "error": "pictures is not a folder", "seconds": 0.1},
        {"phase": "hello", "error": "pictures is not a folder", "seconds": 0.2},
        {"phase": "refused", "error": "device 3 is none of this run's 2 devices", "seconds": 0.1},
    )  # fmt: skip
    assert follow(member, "INFO: SuperNode ID: 7\n", 0, rows)[1:-1] == [
        "round 1  loss 2.360  accuracy before 25.0 %  sent 246.0 kB  3.3 s",
        "train, round 2: failed: the disk is full",
        "cannot take part: pictures is not a folder; when that is solved, stop this and join again",
        "the server refuses this device: device 3 is none of this run's 2 devices",
    ]


def test_a_process_that_was_killed_over_a_message_is_told(member):
    sent = "INFO: Sending: train message (ID: 7)\n"
    log = f"INFO: SuperNode ID: 7\n{sent}"
    row = {"phase": "train", "round": 2, "error": "the disk is full"}
    (told,) = follow(member, log, 0)[1:-1]
    assert "perhaps for want of memory" in told
    assert follow(member, log, 0, (row,))[1:-1] == ["train, round 2: failed: the disk is full"]


@pytest.mark.parametrize("torn", ['{"phase": "tra', "null\n", '{"phase": "train"}\n'])
def test_half_a_line_of_a_killed_process_does_not_end_the_device(member, torn):
    row = {"phase": "train", "round": 2, "error": "the disk is full"}
    told = follow(member, "INFO: SuperNode ID: 7\n", 0, (row, row), torn)
    assert told[1].startswith("worked.jsonl has a line that cannot be read: ")
    assert told[-2] == "train, round 2: failed: the disk is full"


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (1, "Exit Code: 305\n[code: 2001] All SuperNodes must be registered.", "with --key"),
        (1, "Exit Code: 305\n[code: 2004] Failed to activate SuperNode.", "know the key mine"),
        (1, "Exit Code: 302\nUnable to parse the private key file.", "mine is no private key"),
        (FOREIGN, "", "install the same version on both sides"),
    ],
)
def test_a_refused_device_ends_with_the_reason(member, code, log, reason):
    with pytest.raises(RunError, match=reason):
        list(_followed_after(member, log, code))


def _followed_after(member: Member, log: str, code: int) -> Any:
    return follow(member, f"INFO: SuperNode ID: 1\n{log}\n", code)


@pytest.mark.parametrize("code", [0, 1, LOST, -9])
def test_any_other_end_means_to_try_again(member, code):
    told = follow(member, "INFO: SuperNode ID: 1\n", code)
    assert told[1:] == ["the connection has ended; joining again"]


def test_one_that_ends_before_it_joined_says_where_to_look(member):
    (told,) = follow(member, "", 1)
    log = member.state / "supernode.log"
    assert told == (
        f"Flower's SuperNode has ended before it joined; {log} may say why; joining again"
    )


def test_a_clock_that_the_server_does_not_believe_is_named(member):
    log = f"INFO: Starting\nERROR :     {CLOCK} 61 s ahead of the server's\nINFO: Shutting down\n"
    assert follow(member, log, 0) == [
        f"{CLOCK} 61 s ahead of the server's; set the clocks right; joining again"
    ]


def test_what_is_wrong_at_every_attempt_is_told_once(member, monkeypatch):
    clock = f"{CLOCK} {{}} s ahead of the server's; set the clocks right; joining again"
    silent, ended = (
        "waiting for here: Connection refused",
        "the connection has ended; joining again",
    )
    lines = [
        clock.format(61),
        clock.format(62),
        silent,
        clock.format(60),
        "round 1",
        "round 1",
        ended,
        ended,
    ]
    monkeypatch.setattr(joining, "_attempts", lambda member: iter(lines))
    assert list(join(member)) == [
        clock.format(61),
        silent,
        clock.format(60),
        "round 1",
        "round 1",
        ended,
    ]


def test_the_settings_of_a_device_reach_flower_whatever_they_are(member, monkeypatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(joining, "running", lambda module, words, **_: seen.append(words))
    started(member)
    words = seen[0]
    stored = Path(words[words.index("--node-config") + 1])
    assert tomllib.loads(stored.read_text()) == member.settings
    assert "--insecure" in words
    assert words[words.index("--superlink") + 1] == "fl.example.org:8443"


def test_texts_are_as_long_as_a_server_takes_them():
    assert joining.LONGEST == TEXT_LIMIT


def test_certificate_and_key_are_passed_on(tmp_path):
    member = Member(SERVER, tmp_path, {}, certificate=Path("ca.crt"), key=Path("mine"))
    words = " ".join(member.options())
    assert "--root-certificates ca.crt --auth-supernode-private-key mine" in words
    assert "--insecure" not in words


def test_a_state_that_cannot_be_had_names_the_option_to_change(member):
    with (
        RunFolder(member.state / ".flower").held(),
        pytest.raises(CheckpointError, match="wait, or choose another --state"),
    ):
        next(join(member))
    taken = member.state / "a file"
    taken.write_text("not a folder")
    with pytest.raises(CheckpointError, match=r"cannot write .*; choose another --state$"):
        next(join(replace(member, state=taken)))
