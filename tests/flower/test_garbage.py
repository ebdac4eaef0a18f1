"""Dishonest devices among honest ones; and what an honest one sends, as it is on the wire."""

import os
import re
from contextlib import ExitStack

import torch
from tests.flower.conftest import write_config
from tests.flower.deployment import MARKS, ROOT, reasons, rounds, started, worked
from tests.flower.garbage import HELLO, KINDS
from tests.flower.relay import relayed

from dapperfl.data.benchmark import Examples
from dapperfl.flower.processes import free_port
from dapperfl.lab.build import load_federation
from dapperfl.lab.folder import read_json

pytestmark = MARKS


def test_garbage_of_ten_kinds_is_refused_and_the_round_goes_on(place, minidigits_root):
    config = write_config(place / "run.toml", minidigits_root, "rounds=4", "deploy.deadline=120")
    federation = load_federation(config)
    port = free_port()
    spoilt = os.pathsep.join([str(ROOT / "tests/flower/spoilt"), str(ROOT)])
    serve = ["serve", "run.toml", "--out", "out", "--insecure"]
    with ExitStack() as stack:
        server = stack.enter_context(
            started([*serve, "--host", "127.0.0.1", "--port", port], place / "serve.txt")
        )
        server.wait_for("listening on")
        wire = stack.enter_context(relayed(port))
        join = ["--partition", "--root", minidigits_root, "--insecure"]
        for device in federation.devices:
            there = f"127.0.0.1:{port if device.id else wire.port}"
            words: list[object] = ["join", there, *join, "--id", device.id, "--rho", device.rho]
            words += ["--state", place / f"device-{device.id}"]
            bad = {"PYTHONPATH": spoilt} if device.id else {}
            stack.enter_context(started(words, place / f"join-{device.id}.txt", **bad))
            if device.id == 0:  # the rude one comes before the fleet is complete
                rude: list[object] = ["join", f"127.0.0.1:{port}", *join, "--id", HELLO]
                rude += ["--state", place / "rude"]
                stack.enter_context(started(rude, place / "rude.txt", PYTHONPATH=spoilt))
        assert server.ended() == 0
        said = server.said()

    lines = rounds(place / "out")
    assert len(lines) == 4
    for (liar, number), (_, expected) in KINDS.items():
        reason = reasons(lines[number - 1])[liar]
        assert reason.startswith("refused: ")
        assert re.search(expected, reason), (liar, number, reason)
        assert f"device {liar} is left out: {reason}" in said
    assert len({reasons(lines[number - 1])[liar] for liar, number in KINDS}) == len(KINDS)
    assert "a device is refused" in said  # the tenth, which never said who it is
    for line in lines:
        assert set(reasons(line)) == {1, 2, 3}
        assert set(line.costs) == {0}
        assert line.loss is not None
    aside = "put aside after 3 refused replies in a row"
    assert set(reasons(lines[3]).values()) == {aside}
    ledger = read_json(place / "out/.flower/ledger.json")
    assert ledger["refused"] == {"1": 3, "2": 3, "3": 3}

    sent = sum(row.get("sent", 0) for row in worked(place / "device-0"))
    assert_no_picture_in(bytes(wire.sent), federation.train[0])
    assert str(minidigits_root).encode() not in wire.sent
    assert str(place).encode() not in wire.sent
    assert wire.sent.count(b'"kind":"update"') == 4  # the wire was looked at, and is not encrypted
    assert len(wire.sent) > sent > 4 * 8000


def assert_no_picture_in(wire: bytes, pictures: Examples) -> None:
    """Look for every row of pixels, as a byte each and as the numbers that the net is shown."""
    rows = pictures.images.reshape(-1, pictures.images.shape[-1])
    telling = rows[[len(row.unique()) > 8 for row in rows]]
    assert len(telling) > 1000
    found = [row for row in telling if bytes(row.tolist()) in wire]
    assert found == []
    scaled = (telling[::10].to(torch.float32) / 255).numpy()
    assert [row for row in scaled if row.tobytes() in wire] == []
