"""What `dapperfl serve` makes of the files that a ServerApp writes."""

import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dapperfl.errors import RunError
from dapperfl.flower.address import Address
from dapperfl.flower.certificates import Certificates, make_certificates, public_keys
from dapperfl.flower.place import Place
from dapperfl.flower.processes import Child
from dapperfl.flower.serving import Door, _News, _Watch, serve
from dapperfl.lab.folder import RunFolder, write_json
from dapperfl.lab.records import RoundLine, append
from dapperfl.lab.resolve import resolve

LINE = RoundLine(1, {"mnist": 10.0}, 10.0, None, 1.0, {}, ())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "out")
    place.folder.mkdir(parents=True)
    return place


def link(place: Place, program: str) -> Child:
    """Return a process that stands for the SuperLink."""
    process = subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE)
    return Child("superlink", process, place.superlink, 0)


def tell(place: Place, state: str, message: str = "") -> None:
    write_json(place.status, {"state": state, "message": message})


def test_the_state_is_what_the_server_app_tells(place):
    child = link(place, "read forever")
    watch = _Watch(child, place)
    try:
        assert watch.look() == "starting"
        with RunFolder(place.folder).held():
            tell(place, "waiting")
            assert watch.look() == "waiting"
            tell(place, "running")
            assert watch.look() == "running"
        tell(place, "finished")
        assert watch.look() == "finished"
        tell(place, "failed", "the net is too small")
        with pytest.raises(RunError, match="the net is too small"):
            watch.look()
    finally:
        child.process.kill()
        child.process.communicate()


def test_a_server_app_that_is_gone_is_noticed_once_it_has_had_time_to_take_leave(
    place, monkeypatch
):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    child = link(place, "read forever")
    watch = _Watch(child, place)
    try:
        tell(place, "running")
        assert watch.look() == "running"  # nobody holds the lock, but only since now
        now[0] += 4
        assert watch.look() == "running"
        with RunFolder(place.folder).held():
            now[0] += 4
            assert watch.look() == "running"
        assert watch.look() == "running"
        now[0] += 6
        with pytest.raises(RunError, match=r"without a word; continue with --out .*/out --resume"):
            watch.look()
    finally:
        child.process.kill()
        child.process.communicate()


def test_a_server_app_that_never_starts_is_noticed(place, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    child = link(place, "read forever")
    watch = _Watch(child, place)
    try:
        assert watch.look() == "starting"
        now[0] += 121
        with pytest.raises(RunError, match="without a word"):
            watch.look()
    finally:
        child.process.kill()
        child.process.communicate()


def test_a_server_app_that_takes_long_to_read_its_pictures_is_waited_for(place, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    child = link(place, "read forever")
    watch = _Watch(child, place)
    try:
        with RunFolder(place.folder).held():
            tell(place, "starting")
            now[0] += 1000
            assert watch.look() == "starting"
        watch.look()
        now[0] += 6
        with pytest.raises(RunError, match="without a word"):
            watch.look()
    finally:
        child.process.kill()
        child.process.communicate()


def test_a_superlink_that_is_gone_is_noticed_unless_all_is_done(place):
    child = link(place, "exit 3")
    child.process.communicate()
    watch = _Watch(child, place)
    with pytest.raises(RunError, match="Flower's SuperLink has ended"):
        watch.look()
    tell(place, "finished")
    assert watch.look() == "finished"


def test_news_are_notes_and_rounds_and_nothing_twice(place):
    place.notes.write_text("of an earlier start\n")
    rounds = RunFolder(place.out).rounds
    append(rounds, LINE)
    append(rounds, replace(LINE, round=2))
    news = _News(place)
    assert list(news.since("waiting")) == []
    with place.notes.open("a") as file:
        file.write("device 1 joined\n")
    assert list(news.since("waiting")) == ["device 1 joined"]
    # What a killed server has not completed is cut off when the run is opened again.
    rounds.write_text(rounds.read_text().splitlines(keepends=True)[0])
    assert list(news.since("running")) == []
    append(rounds, replace(LINE, round=2))
    with place.notes.open("a") as file:
        file.write("device 1 is left out\n")
    note, line = news.since("running")
    assert (note, line.round) == ("device 1 is left out", 2)  # type: ignore[union-attr]
    assert list(news.since("finished")) == []


def test_the_superlink_is_told_about_security():
    address = Address("0.0.0.0", 8443)
    assert "--insecure" in Door(address).options()
    words = Door(address, Certificates(Path("/c")), Path("/c/devices")).options()
    assert "--insecure" not in words
    assert "--enable-supernode-auth" in words
    assert words[words.index("--ssl-keyfile") + 1] == "/c/server.key"


def test_a_key_that_lies_there_twice_is_registered_once(tmp_path):
    files = make_certificates(tmp_path, ["localhost"], 2)
    copy = files.devices / "copy of device-0.pub"
    copy.write_bytes(files.device_key(0).with_suffix(".pub").read_bytes())
    door = Door(Address("0.0.0.0", 8443), files, files.devices)
    assert len(public_keys(files.devices)) == 3
    assert len(door.public_keys()) == len(set(door.public_keys())) == 2


def test_settings_without_effect_are_said_before_the_server_starts(tmp_path, caplog):
    own = ['deploy.classes=["cat","dog"]', "data.fraction=0.5", "net=convnet", "net.width=4"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        door = Door(Address("127.0.0.1", taken.getsockname()[1]))
        with pytest.raises(RunError, match="port"):
            next(serve(resolve(None, own), tmp_path / "out", door, resume=False))
    assert "settings without effect: data.fraction" in caplog.text
