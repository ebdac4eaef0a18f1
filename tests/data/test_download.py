import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapperfl.data.catalogue import Download
from dapperfl.data.download import Patience, download, may_follow
from dapperfl.errors import ConfigError, DataError
from tests.data.loopback import Misbehaving, serving
from tests.data.official import pixels

DATA = pixels(200_000).tobytes()
HALF = len(DATA) // 2


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with serving() as server:
        server.files["/a.bin"] = DATA
        yield server


def item(data: bytes = DATA, *urls: str) -> Download:
    return Download("a.bin", urls, len(data), hashlib.md5(data).hexdigest())


def patience(server: Misbehaving, **changes: float) -> Patience:
    return Patience(mirror=server.url, **{"timeout": 5.0, "pause": 0.001, **changes})  # type: ignore[arg-type]


def ranges(server: Misbehaving) -> list[str | None]:
    return [asked for _, asked in server.asked]


def test_a_file_is_fetched_once_and_kept(server: Misbehaving, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "folder"
    path = download(item(), folder, patience=patience(server), seen=lambda *told: seen.append(told))
    assert path.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert [each.name for each in folder.iterdir()] == ["a.bin"]
    download(item(), folder, patience=patience(server))
    assert len(server.asked) == 1


@pytest.mark.parametrize("trouble", ["cut", "stall"])
def test_a_broken_transfer_is_resumed(server: Misbehaving, tmp_path: Path, trouble: str) -> None:
    server.script = [trouble, trouble]
    path = download(item(), tmp_path, patience=patience(server, timeout=0.3))
    assert path.read_bytes() == DATA
    assert ranges(server) == [None, f"bytes={HALF}-", f"bytes={HALF + HALF // 2}-"]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(
    server: Misbehaving, tmp_path: Path
) -> None:
    server.script = ["cut", "500"]
    with pytest.raises(DataError, match="500"):
        download(item(), tmp_path, patience=patience(server, attempts=2))
    assert (tmp_path / "a.bin.part").stat().st_size == HALF
    assert not (tmp_path / "a.bin").exists()
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA
    assert ranges(server)[-1] == f"bytes={HALF}-"
    assert not (tmp_path / "a.bin.part").exists()


def test_a_server_that_ignores_the_range_is_read_from_the_start(
    server: Misbehaving, tmp_path: Path
) -> None:
    server.script = ["cut", "ignore"]
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA


@pytest.mark.parametrize("status", ["500", "503", "429"])
def test_a_passing_error_is_tried_again(server: Misbehaving, tmp_path: Path, status: str) -> None:
    server.script = [status, status]
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA
    assert len(server.asked) == 3


def test_pauses_become_longer(
    server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    server.script = ["500"] * 9
    with pytest.raises(DataError, match="in 4 attempts"):
        download(item(), tmp_path, patience=patience(server, attempts=4, pause=2.0))
    assert pauses == [2.0, 4.0, 8.0]


def test_a_missing_file_is_not_asked_for_again(server: Misbehaving, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(DataError, match=r"a\.bin .*/a\.bin: the server answers 404"):
        download(item(), tmp_path, patience=patience(server))
    assert len(server.asked) == 1


def test_wrong_bytes_are_named_and_removed(server: Misbehaving, tmp_path: Path) -> None:
    server.script = ["wrong"]
    with pytest.raises(DataError) as caught:
        download(item(), tmp_path, patience=patience(server))
    said = str(caught.value)
    assert "a.bin" in said
    assert item().md5 in said
    assert hashlib.md5(bytes(len(DATA))).hexdigest() in said
    assert list(tmp_path.iterdir()) == []


def test_wrong_bytes_from_an_earlier_call_are_not_held_against_the_server(
    server: Misbehaving, tmp_path: Path
) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"junk" * 100)
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA
    assert ranges(server) == ["bytes=400-", None]


@pytest.mark.parametrize("extra", [0, 1000])
def test_a_part_that_is_as_long_as_the_file_or_longer_is_replaced(
    server: Misbehaving, tmp_path: Path, extra: int
) -> None:
    (tmp_path / "a.bin.part").write_bytes(bytes(len(DATA) + extra))
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA


def test_a_damaged_file_is_fetched_anew(server: Misbehaving, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(DATA[:-1] + b"?")
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA


def test_another_part_than_was_asked_for_is_refused(server: Misbehaving, tmp_path: Path) -> None:
    server.script = ["cut", "other part"]
    with pytest.raises(DataError, match="another part of the file"):
        download(item(), tmp_path, patience=patience(server))


@pytest.mark.parametrize("behaviour", ["whole", "no length"])
def test_a_file_that_is_far_too_long_is_refused(
    server: Misbehaving, tmp_path: Path, behaviour: str
) -> None:
    server.script = [behaviour]
    with pytest.raises(DataError, match="twice the official size"):
        download(item(DATA[:50_000]), tmp_path, patience=patience(server))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


def test_a_server_that_does_not_tell_the_length_is_read_too(
    server: Misbehaving, tmp_path: Path
) -> None:
    server.script = ["no length"]
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA


def test_redirects_are_followed_with_the_range(server: Misbehaving, tmp_path: Path) -> None:
    server.script = ["to /moved/a.bin", "cut", "to /moved/a.bin"]
    assert download(item(), tmp_path, patience=patience(server)).read_bytes() == DATA
    assert server.asked[-1] == ("/moved/a.bin", f"bytes={HALF}-")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/a.bin"])
def test_a_redirect_away_from_the_web_is_refused(
    server: Misbehaving, tmp_path: Path, address: str
) -> None:
    server.script = [f"to {address}"]
    with pytest.raises(DataError, match=r"not followed|not allowed"):
        download(item(), tmp_path, patience=patience(server))
    assert len(server.asked) == 1


def test_a_redirect_never_gives_up_a_safe_line() -> None:
    assert may_follow("https://a.example/x", "https://b.example/x")
    assert may_follow("http://a.example/x", "https://b.example/x")
    assert not may_follow("https://a.example/x", "http://a.example/x")


def test_the_next_address_is_tried(server: Misbehaving, tmp_path: Path) -> None:
    wanted = item(DATA, f"{server.url}/gone.bin", f"{server.url}/a.bin")
    path = download(wanted, tmp_path, patience=Patience(timeout=5))
    assert path.read_bytes() == DATA
    assert [asked for asked, _ in server.asked] == ["/gone.bin", "/a.bin"]


def test_a_machine_that_is_offline_gets_one_line_with_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    url = "https://data.example/a.bin"
    with pytest.raises(DataError, match="is this machine online") as caught:
        download(item(DATA, url), tmp_path, patience=Patience())
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refused_connection_is_named(tmp_path: Path) -> None:
    with serving() as gone:
        pass
    with pytest.raises(DataError, match=r"refused.*in 2 attempts"):
        download(item(), tmp_path, patience=patience(gone, attempts=2))


def test_a_full_disk_is_not_taken_for_a_bad_line(
    server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        download(item(), tmp_path, patience=patience(server))
    assert len(server.asked) == 1


def test_a_mirror_must_be_on_the_web() -> None:
    with pytest.raises(ConfigError, match="file:///tmp"):
        Patience(mirror="file:///tmp")
