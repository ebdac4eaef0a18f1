"""A device takes the thin app of its own version and no other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dapperfl.flower.app_folder import bundle
from dapperfl.flower.supernode import FOREIGN, _careful


class GoneError(Exception):
    """The process has ended."""


def connection(app: bytes) -> Any:
    """Return a stand-in for Flower's connection, to a server that ships an app."""

    @contextmanager
    def connect(address: str) -> Iterator[tuple[Any, ...]]:
        fab = SimpleNamespace(content=app)
        yield address, "receive", "send", "run", lambda hash_str, run_id: fab, "pull", "push"

    return connect


def test_its_own_app_is_kept_and_the_connection_is_otherwise_as_it_was():
    with _careful(connection(bundle()), "server") as (node, receive, send, run, fab, *rest):
        assert (node, receive, send, run, rest) == (
            "server",
            "receive",
            "send",
            "run",
            ["pull", "push"],
        )
        assert fab("hash", 1).content == bundle()


def test_another_app_ends_the_device_before_it_is_kept(monkeypatch):
    def leave(code: int) -> None:
        assert code == FOREIGN
        raise GoneError

    monkeypatch.setattr(os, "_exit", leave)
    connect = connection(b"something else")
    with _careful(connect, "server") as (*_, fab, _, _), pytest.raises(GoneError):
        fab("hash", 1)


@pytest.mark.parametrize("module", ["supernode", "superlink", "joining", "processes"])
def test_what_only_waits_takes_no_memory_for_torch(module):
    code = f"import dapperfl.flower.{module}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
