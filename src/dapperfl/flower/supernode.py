"""Flower's SuperNode, as `dapperfl join` starts it: on a lifeline, and for one app alone.

A SuperNode runs whatever app its server ships. This one takes only the thin app of the installed
package, so that a server can ask a device to train, and for nothing else.
"""

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from dapperfl.flower.app_folder import is_ours
from dapperfl.flower.lifeline import end_with_parent

FOREIGN = 70  # exit code: the server ships another app
LOST = 71  # exit code: the connection ended in a way that Flower does not mend
CLOCK = "the clock of this device is"  # what the log says of one that is wrong
_AHEAD, _BEHIND = 5.0, 305.0  # seconds; Flower believes no signature of a clock that is further off
_ANSWERED, _SLOWEST = 30.0, 20_000.0  # seconds, as Flower has it, and bytes a second

_log = logging.getLogger("flwr")


@contextmanager
def _careful(connect: Callable[..., Any], *args: Any, **settings: Any) -> Iterator[Any]:
    """Connect as Flower does, and look at every app before it is kept."""
    with connect(*args, **settings) as (node, receive, send, get_run, get_fab, *rest):

        def get_our_fab(hash_str: str, run_id: int) -> Any:
            fab = get_fab(hash_str, run_id)
            if not is_ours(fab.content):
                _log.error("the server ships an app that is not this version's own")
                os._exit(FOREIGN)
            return fab

        yield node, receive, send, get_run, get_our_fab, *rest


def wrong_clock(status: int, headers: Mapping[str, str], now: datetime) -> str | None:
    """Say how far this device's clock is off, if that is why a server refuses what it signs."""
    if status != HTTPStatus.UNAUTHORIZED or "date" not in headers:
        return None
    try:
        ahead = (now - parsedate_to_datetime(headers["date"])).total_seconds()
    except (ValueError, TypeError):  # no date, or one without a zone
        return None
    if -_BEHIND < ahead < _AHEAD:
        return None
    return f"{CLOCK} {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"


def _telling(intercept: Callable[..., Any]) -> Callable[..., Any]:
    """Sign as Flower does, and write down why that is refused: Flower ends without a word."""

    def told(self: Any, context: Any, call_next: Any) -> Any:
        response = intercept(self, context, call_next)
        if reason := wrong_clock(response.status_code, response.headers, datetime.now(UTC)):
            _log.error(reason)
        return response

    return told


def _patient(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Ask as Flower does, but give a large request the time that a slow link takes for it.

    It lies in this machine's buffers long after it was written. Flower gives up after 30 s and
    sends it again, beside the first, on the same slow link.
    """

    def asked(*args: Any, request: Any, timeout: float | None = None, **settings: Any) -> Any:
        if timeout is None:
            timeout = _ANSWERED + request.ByteSize() / _SLOWEST
        return ask(*args, request=request, timeout=timeout, **settings)

    return asked


def main() -> None:
    """Run the SuperNode with the options of this command line."""
    end_with_parent()
    # By name: these are not meant to be imported by others.
    node, command, signing = (
        importlib.import_module(f"flwr.supernode.{name}")
        for name in ("start_client_internal", "cli.flower_supernode", "node_auth_http_interceptor")
    )
    client = importlib.import_module("flwr.supernode.fleet_http_client").FleetHttpClient
    client._unary_unary = _patient(client._unary_unary)
    signer = signing.NodeAuthHttpInterceptor
    signer.intercept = _telling(signer.intercept)
    connect = node.http_request_response

    def careful(*args: Any, **settings: Any) -> Any:
        return _careful(connect, *args, **settings)

    node.http_request_response = careful  # type: ignore[attr-defined]
    command.flower_supernode()
    # It returns only after an error; a thread of its own would keep the process alive.
    os._exit(LOST)


if __name__ == "__main__":
    main()
