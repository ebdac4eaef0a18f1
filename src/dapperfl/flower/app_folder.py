"""The thin Flower app: all it does is to name our ServerApp and ClientApp.

Flower ships it from the server to every device. It holds no code but two imports of the installed
package, no data and no weights; a device takes this app and no other.
"""

import io
import lzma
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from dapperfl import __version__
from dapperfl.lab.folder import write_atomically

_PACKAGE = "dapperfl_app"
# The list of dependencies is empty on purpose: Flower would install them beside, and maybe over,
# what is there.
_PROJECT = f"""\
[project]
name = "dapperfl-app"
version = "{__version__}"
description = "Names the ServerApp and the ClientApp of the installed dapperfl."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "dapperfl"

[tool.flwr.app.components]
serverapp = "{_PACKAGE}.server_app:app"
clientapp = "{_PACKAGE}.client_app:app"

[tool.flwr.app.config]
"""
_MOST = 2**20  # bytes of an app that is looked at
_DAMAGE = (  # all that opening a stranger's archive may say
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(ValueError, KeyError, NotImplementedError, RuntimeError),
)


def app_files() -> Mapping[str, bytes]:
    """Return the files of the app by their path."""
    modules = {
        f"{_PACKAGE}/{name}.py": (
            f'"""The {kind} of the installed package."""\n\n'
            f"from dapperfl.flower import {name}\n\n"
            f"app = {name}.app\n"
        ).encode()
        for name, kind in (("server_app", "ServerApp"), ("client_app", "ClientApp"))
    }
    return {
        "pyproject.toml": _PROJECT.encode(),
        f"{_PACKAGE}/__init__.py": b'"""Dapperfl as a Flower app."""\n',
        **modules,
    }


def write_app(folder: Path) -> None:
    """Write the app, over whatever an earlier start of the run has left."""
    for name, content in app_files().items():
        write_atomically(folder / name, content)


def bundle() -> bytes:
    """Return the app as the file that Flower ships."""
    from flwr.cli.build import build_fab_from_files

    with warnings.catch_warnings():  # of what Flower itself uses
        warnings.simplefilter("ignore", DeprecationWarning)
        return build_fab_from_files(dict(app_files()))[0]


def is_ours(shipped: bytes) -> bool:
    """Say whether a file that a server ships is this very app, whatever its compression."""
    try:
        return _contents(shipped) == _contents(bundle())
    except _DAMAGE:
        return False


def _contents(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        names = {entry.filename for entry in entries}
        if len(names) != len(entries) or sum(entry.file_size for entry in entries) > _MOST:
            raise ValueError("a name is there twice, or the app is too large to be ours")
        return {name: archive.read(name) for name in names}
