"""A device takes the thin app of its own version and no other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.supernode.fleet_http_client import FleetHttpClient

from dapperfl.flower.app_folder import bundle
from dapperfl.flower.superlink import CHUNK
from dapperfl.flower.supernode import (
    CLOCK,
    FOREIGN,
    _careful,
    _patient,
    _telling,
    wrong_clock,
)


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


NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "ahead", "told"),
    [
        (401, 60, f"{CLOCK} 60 s ahead of the server's"),
        (401, -3600, f"{CLOCK} 3600 s behind the server's"),
        (401, 2, None),  # it is another server by now, which does not know this node
        (200, 60, None),
        (503, 60, None),
    ],
)
def test_a_wrong_clock_is_named_where_it_is_why_the_server_refuses(status, ahead, told):
    headers = {"date": format_datetime(NOON, usegmt=True)}
    assert wrong_clock(status, headers, NOON + timedelta(seconds=ahead)) == told


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 16 Nov 2026 12:00:00"])
def test_a_server_that_does_not_say_the_time_is_no_trouble(date):
    assert wrong_clock(401, {"date": date}, NOON) is None
    assert wrong_clock(401, {}, NOON) is None


def test_the_clock_is_looked_at_in_answers_to_what_is_signed(caplog):
    late = SimpleNamespace(status_code=401, headers={"date": format_datetime(NOON)})
    signed = _telling(lambda self, context, call_next: call_next(context))
    assert signed(None, "request", lambda context: late) is late
    assert CLOCK in caplog.text


@pytest.mark.parametrize(
    ("size", "told", "seconds"), [(50, None, 30), (50, 5, 5), (CHUNK, None, 292)]
)
def test_a_large_request_has_the_time_that_a_slow_link_takes(monkeypatch, size, told, seconds):
    client = FleetHttpClient("http://127.0.0.1:1")
    monkeypatch.setattr(FleetHttpClient, "_unary_unary", _patient(FleetHttpClient._unary_unary))
    asked: list[Any] = []

    def answer(context: Any) -> httpx.Response:
        asked.append(context.request)
        return httpx.Response(200, request=context.request)

    monkeypatch.setattr(client, "_send", answer)
    request = PushObjectRequest(object_content=b"x" * size)
    settings = {} if told is None else {"timeout": told}
    client._unary_unary(
        path="/", rpc_method="", request=request, response_type=PushObjectResponse, **settings
    )
    given = asked[0].extensions["timeout"]
    assert given["read"] == given["write"] == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize("module", ["supernode", "superlink", "joining", "processes"])
def test_what_only_waits_takes_no_memory_for_torch(module):
    code = f"import dapperfl.flower.{module}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
