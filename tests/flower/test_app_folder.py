"""The thin app: valid for Flower, the same every time, and told apart from any other."""

import ast
import io
import tomllib
import zipfile

import pytest
from flwr.cli.config_utils import load_and_validate

from dapperfl import __version__
from dapperfl.flower.app_folder import app_files, bundle, is_ours, write_app


def test_flower_finds_nothing_wrong_with_it(tmp_path):
    write_app(tmp_path)
    write_app(tmp_path)  # over itself, as on resume
    config, warnings = load_and_validate(tmp_path / "pyproject.toml")
    assert warnings == []
    assert config["project"]["version"] == __version__
    assert config["project"]["dependencies"] == []


def test_its_modules_only_name_what_the_installed_package_has():
    for name, content in app_files().items():
        if name.endswith(".py"):
            document, *rest = ast.parse(content).body
            assert isinstance(document, ast.Expr)
            kinds = [type(node) for node in rest]
            assert kinds in ([], [ast.ImportFrom, ast.Assign])
            assert all(node.module == "dapperfl.flower" for node in rest[:1])  # type: ignore[attr-defined]
    parts = tomllib.loads(app_files()["pyproject.toml"].decode())["tool"]["flwr"]["app"]
    for component in parts["components"].values():
        assert component.partition(":")[0].replace(".", "/") + ".py" in app_files()


def repacked(change: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Pack the app again, with other or further files."""
    with zipfile.ZipFile(io.BytesIO(bundle())) as archive:
        files = {name: archive.read(name) for name in archive.namelist()} | change
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_a_device_knows_its_own_app_however_it_is_packed():
    assert is_ours(bundle())
    assert is_ours(repacked({}))
    assert is_ours(repacked({}, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    "change",
    [
        {"dapperfl_app/client_app.py": b"import os"},
        {"dapperfl_app/more.py": b""},
        {"sitecustomize.py": b""},
        {"large.py": b" " * 2**21},
    ],
)
def test_any_other_app_is_refused(change):
    assert not is_ours(repacked(change))


def test_a_file_that_is_there_twice_is_refused():
    packed = io.BytesIO(bundle())
    with zipfile.ZipFile(packed, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("dapperfl_app/client_app.py", app_files()["dapperfl_app/client_app.py"])
    assert not is_ours(packed.getvalue())


@pytest.mark.parametrize("cut", [0, 1, 100, -30])
def test_what_is_no_app_at_all_is_refused(cut):
    assert not is_ours(bundle()[:cut])


def test_damage_inside_is_noticed():
    data = bytearray(bundle())
    for place in range(60, 200, 7):
        data[place] ^= 0xFF
    assert not is_ours(bytes(data))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, 99])
@pytest.mark.parametrize("size", [0, 7, 2**19])
def test_an_archive_that_lies_about_its_contents_is_refused(method, size):
    data = bytearray(repacked({}))
    local, central = data.index(b"PK\3\4"), data.index(b"PK\1\2")
    for place in (local + 8, central + 10):
        data[place] = method
    data[central + 20 : central + 24] = size.to_bytes(4, "little")  # compressed
    assert not is_ours(bytes(data))
