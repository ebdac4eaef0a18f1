import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dapperfl.data import benchmarks, catalogue
from dapperfl.data.catalogue import Download, Origin
from dapperfl.data.download import Patience
from dapperfl.data.fetch import fetch
from dapperfl.errors import ConfigError
from tests.data.loopback import Misbehaving, serving
from tests.data.official import write_images, write_mnist, write_svhn, write_usps


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Misbehaving]:
    """A mirror with small official files, and a catalogue that knows their checksums."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "mirror"
    for split in ("train", "test"):
        write_mnist(folder, split, packed=True)
        write_usps(folder, split)
        write_svhn(folder, split)
    small = {name: _small(origin, folder) for name, origin in catalogue.CATALOGUE["digits"].items()}
    known: Mapping[str, Mapping[str, Origin]] = {**catalogue.CATALOGUE, "digits": small}
    monkeypatch.setattr(catalogue, "CATALOGUE", known)
    with serving() as server:
        server.files = {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}
        yield server


def _small(origin: Origin, folder: Path) -> Origin:
    items = []
    for item in origin.downloads:
        data = (folder / item.name).read_bytes()
        items.append(Download(item.name, (), len(data), hashlib.md5(data).hexdigest()))
    return replace(origin, downloads=tuple(items))


def patience(server: Misbehaving) -> Patience:
    return Patience(mirror=server.url, pause=0.001, timeout=5, attempts=2)


def test_public_files_are_fetched_and_prepared_and_the_rest_is_explained(
    server: Misbehaving, tmp_path: Path
) -> None:
    seen = set()
    report = fetch(
        "digits",
        root=tmp_path / "root",
        patience=patience(server),
        progress=lambda what, _done, _total: seen.add(what),
    )
    assert report.troubles == ()
    assert [each.state for each in report.outcomes] == ["written"] * 6 + ["missing"] * 2
    assert len(report.advice) == 1
    assert "Kaggle behind a login" in report.advice[0]
    assert {"svhn train_32x32.mat", "svhn train"} <= seen


def test_what_was_put_there_by_hand_completes_it(server: Misbehaving, tmp_path: Path) -> None:
    for name in ("imgs_train", "imgs_valid"):
        write_images(tmp_path / "downloads" / "digits" / "syn" / name, "0123456789", 1)
    assert fetch("digits", root=tmp_path, patience=patience(server)).complete
    assert len(benchmarks.load("digits", tmp_path).domains) == 4
    asked = len(server.asked)
    assert fetch("digits", root=tmp_path, patience=patience(server)).complete
    assert len(server.asked) == asked == 8


def test_a_file_that_cannot_be_had_does_not_stop_the_others(
    server: Misbehaving, tmp_path: Path
) -> None:
    del server.files["/usps.bz2"]
    report = fetch("digits", root=tmp_path, patience=patience(server))
    assert len(report.troubles) == 1
    assert f"usps: usps.bz2 could not be downloaded ({server.url}/usps.bz2: " in report.troubles[0]
    assert [each.domain for each in report.outcomes if each.state == "written"] == (
        ["mnist"] * 2 + ["svhn"] * 2
    )
    assert any(line.startswith("usps: get usps.bz2") for line in report.advice)


def test_the_environment_may_name_a_mirror(
    server: Misbehaving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAPPERFL_MIRROR", server.url)
    assert fetch("digits", root=tmp_path).troubles == ()
    assert len(server.asked) == 8


def test_what_has_no_public_address_is_explained_without_asking_anybody(tmp_path: Path) -> None:
    report = fetch("office_caltech", root=tmp_path)
    assert not report.complete
    assert len(report.advice) == 4
    assert all("no stable public address" in line for line in report.advice)


def test_an_unknown_benchmark_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        fetch("digit", root=tmp_path)
